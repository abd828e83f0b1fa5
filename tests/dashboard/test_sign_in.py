"""Flower by a link with a token, by its own host names only, and the policies of Flower's own pages."""

from collections.abc import Callable
from http.cookiejar import CookieJar
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, OpenerDirector, Request, build_opener

import pytest

from tests.chromium import Page
from tests.cli.commands import clean_environment, run_command
from tests.dashboard.conftest import StartFlower
from tests.processes import Flower, free_port

OpenPage = Callable[..., Page]
TOKEN = "a-token-of-this-test"
LINK = f"/login?next=/mcp&token={TOKEN}"
PAGES = ["/", "/workers", "/tasks", "/broker", "/mcp", "/api/workers"]


@pytest.fixture(scope="module")
def flower(start_flower: StartFlower) -> Flower:
    return start_flower(TARSY_DASHBOARD_TOKEN=TOKEN)


@pytest.fixture
def stranger() -> OpenerDirector:
    return build_opener(HTTPCookieProcessor(CookieJar()))


@pytest.fixture
def operator(flower: Flower, stranger: OpenerDirector) -> OpenerDirector:
    """Has opened the link."""
    assert ask(stranger, flower.url + LINK)[0] == 200
    return stranger


def ask(opener: OpenerDirector, url: str, **headers: str) -> tuple[int, str, Any]:
    """Status, body and headers of an answer, after redirects."""
    try:
        answer: Any = opener.open(Request(url, headers=headers), timeout=20)
    except HTTPError as error:
        answer = error
    with answer:
        return answer.status or 0, answer.read().decode(), answer.headers


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_shown_without_the_link(flower: Flower, stranger: OpenerDirector, path: str) -> None:
    status, text, _ = ask(stranger, flower.url + path)
    assert (status, "Open the link with the token" in text) == (403, True)


@pytest.mark.parametrize("token", ["", "guessed", "gr%C3%B6%C3%9Fe", TOKEN[:-1], f"{TOKEN}x"])
def test_another_token_does_not_sign_in(flower: Flower, stranger: OpenerDirector, token: str) -> None:
    assert ask(stranger, f"{flower.url}/login?next=/mcp&token={token}")[0] == 403
    assert ask(stranger, f"{flower.url}/mcp")[0] == 403


class _StayHere(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Not followed: where it leads is what counts."""


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("/mcp/calls%3Fserver=desk", "/mcp/calls?server=desk"),
        *((f"/mcp{character}X", "/") for character in ("%0d%0a", "%0a", "%09", "%00", "%20", "%7f", "%C3%A9", "%5c")),
        *((f"{start}evil.example.com", "/") for start in ("//", "/%5c", "/%09/", "/%0d%0a/", "https://", "%5c%5c", "")),
    ],
)
def test_a_sign_in_leads_only_to_a_plain_local_path(flower: Flower, place: str, expected: str) -> None:
    status, _, headers = ask(build_opener(_StayHere), f"{flower.url}/login?next={place}&token={TOKEN}")
    assert (status, headers["Location"]) == (302, expected)


@pytest.mark.parametrize("path", PAGES)
def test_the_link_opens_all_pages(flower: Flower, operator: OpenerDirector, path: str) -> None:
    status, _, headers = ask(operator, flower.url + path)
    assert status == 200
    assert headers["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "script-src 'self'" in headers["Content-Security-Policy"]


def test_cookies_are_not_for_other_sites(flower: Flower, stranger: OpenerDirector) -> None:
    _, _, headers = ask(stranger, flower.url + "/login")
    assert "SameSite=Strict" in headers["Set-Cookie"]


@pytest.mark.parametrize("path", ["/mcp", "/metrics", "/healthcheck", "/static/js/flower.js", LINK])
@pytest.mark.parametrize("host", ["evil.example.com", "evil.example.com:5555", "127.0.0.1.evil.example.com", ""])
def test_other_host_names_are_refused(flower: Flower, operator: OpenerDirector, path: str, host: str) -> None:
    status, text, _ = ask(operator, flower.url + path, Host=host)
    assert (status, "TARSY_DASHBOARD_HOSTS" in text) == (421, True)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:5555", "127.0.0.1:80", "[::1]:5555"])
def test_names_of_this_machine_are_its_own(flower: Flower, operator: OpenerDirector, host: str) -> None:
    assert ask(operator, f"{flower.url}/healthcheck", Host=host)[0] == 200


def test_the_host_names_can_be_set(start_flower: StartFlower, stranger: OpenerDirector) -> None:
    flower = start_flower(TARSY_DASHBOARD_HOSTS="ops.example.com, 127.0.0.1")
    assert ask(stranger, f"{flower.url}/mcp", Host="ops.example.com")[0] == 200
    assert ask(stranger, f"{flower.url}/mcp", Host="localhost")[0] == 421


def test_a_password_that_cannot_be_sent_is_refused_at_start() -> None:
    options = ("--address=127.0.0.1", f"--port={free_port()}", "--basic-auth=sam:größe")
    refused = run_command("flower", *options, environment=clean_environment())
    assert refused.returncode != 0
    assert "not ASCII" in refused.stderr
    assert "größe" not in refused.stderr


@pytest.mark.parametrize("path", ["/", "/tasks", "/broker", "/mcp"])
def test_a_browser_finds_nothing_that_breaks_the_policy(flower: Flower, open_page: OpenPage, path: str) -> None:
    page = open_page(flower.url + LINK)
    page.goto(flower.url + path)
    page.wait_for_load_state("networkidle")
    assert page.locator("nav").count()

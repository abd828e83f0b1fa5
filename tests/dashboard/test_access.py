"""Who may see the MCP pages and use their buttons, with each of Flower's settings."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pytest
import redis
from tornado.web import StaticFileHandler, create_signed_value

from tarsy_tasks.broker import keys
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.dashboard.installation import build_handlers
from tarsy_tasks.dashboard.reader import DashboardReader
from tests.chromium import Page
from tests.dashboard.conftest import StartFlower
from tests.dashboard.incidents import write_parked
from tests.dashboard.records import FleetServer, write_calls, write_fleet, write_health
from tests.processes import Flower, wait_until

OpenPage = Callable[..., Page]
CALL = "00000000-0000-4000-8000-000000000000"
PAGES = [
    *("/mcp", "/mcp/", "/mcp/servers/desk", "/mcp/calls", f"/mcp/calls/{CALL}"),
    *("/mcp/alerts", "/mcp/dead-letters", "/mcp/inbox", f"/mcp/inbox/{CALL}"),
]
DATA = [
    *("/mcp/api/servers", "/mcp/api/servers/desk", "/mcp/api/calls", f"/mcp/api/calls/{CALL}"),
    *("/mcp/api/alerts", "/mcp/api/dead-letters", "/mcp/api/inbox"),
]
ACTIONS = [
    *(f"/mcp/api/servers/desk/{action}" for action in ("reconnect", "refresh", "approve")),
    f"/mcp/api/calls/{CALL}/cancel",
]
TOKEN = {"Cookie": "_xsrf=0123", "X-XSRFToken": "0123"}
KEY = "a key that signs cookies"


class _StayHere(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Not followed: the sign-in page is on another host."""


_opener = build_opener(_StayHere)


FLEET = [FleetServer("desk", tools=3)]


@pytest.fixture(scope="module", autouse=True)
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        write_fleet(client, FLEET)
        write_calls(client, FLEET, 1)
        write_parked(client, CALL)
        yield client
        client.flushall()


@pytest.fixture(scope="module")
def open_flower(start_flower: StartFlower) -> Flower:
    """Without authentication."""
    return start_flower()


@pytest.fixture(scope="module")
def closed_flower(start_flower: StartFlower) -> Flower:
    """Behind a password and below a prefix."""
    return start_flower("--url-prefix=ops/flower", FLOWER_BASIC_AUTH="sam:opensesame")


@pytest.fixture(scope="module")
def read_only_flower(start_flower: StartFlower) -> Flower:
    """Behind OAuth and read-only."""
    return start_flower(
        "--auth=sam@example.com", "--auth-provider=flower.views.auth.GithubLoginHandler", "--read-only",
        FLOWER_OAUTH2_KEY="key", FLOWER_OAUTH2_SECRET="secret", FLOWER_OAUTH2_REDIRECT_URI="http://127.0.0.1/login",
        FLOWER_COOKIE_SECRET=KEY,
    )  # fmt: skip


def basic(credentials: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


PASSWORD = basic("sam:opensesame")


def signed_in(user: str) -> dict[str, str]:
    return {"Cookie": f"user={create_signed_value(KEY, 'user', user).decode()}; _xsrf=0123"}


def ask(url: str, headers: dict[str, str] | None = None, *, post: bool = False) -> tuple[int, str, Any]:
    """Status, body and headers of an answer."""
    request = Request(url, data=b"" if post else None, headers=headers or {})
    try:
        answer: HTTPResponse | HTTPError = _opener.open(request, timeout=20)
    except HTTPError as error:
        answer = error
    with answer:
        return answer.status or 0, answer.read().decode(), answer.headers


def test_every_address_is_in_these_tests() -> None:
    ours = [
        each for each in build_handlers(DashboardReader(build_app())) if each.handler_class is not StaticFileHandler
    ]
    tried = [*PAGES, *DATA, *ACTIONS, "/tasks/datatable", "/broker", "/api/queues/length"]
    untried = [each.regex.pattern for each in ours if not any(each.regex.match(path) for path in tried)]
    assert untried == []


@pytest.mark.parametrize("path", PAGES + DATA)
def test_without_authentication_everyone_sees_all_pages(open_flower: Flower, path: str) -> None:
    status, _, _ = ask(open_flower.url + path)
    assert status == 200


@pytest.mark.parametrize("path", ACTIONS)
def test_without_authentication_nobody_acts(open_flower: Flower, path: str) -> None:
    status, text, _ = ask(open_flower.url + path, TOKEN, post=True)
    assert (status, "FLOWER_UNAUTHENTICATED_API" in text) == (401, True)
    assert "data-action" not in ask(f"{open_flower.url}/mcp/servers/desk")[1]


@pytest.mark.parametrize("path", [*PAGES, *DATA, "/tasks/datatable", "/broker"])
@pytest.mark.parametrize("headers", [{}, basic("sam:guessed"), basic("sam:größe"), {"Authorization": "Basic nonsense"}])
def test_with_a_password_nothing_is_shown_without_it(closed_flower: Flower, path: str, headers: dict[str, str]) -> None:
    status, text, found = ask(closed_flower.url + path, headers)
    assert (status, found["WWW-Authenticate"]) == (401, 'Basic realm="flower"')
    assert "desk" not in text


@pytest.mark.parametrize("path", PAGES + DATA)
def test_pages_are_shown_with_the_password_and_the_prefix(closed_flower: Flower, path: str) -> None:
    assert ask(closed_flower.url + path, PASSWORD)[0] == 200
    assert ask(closed_flower.url.removesuffix("/ops/flower") + path, PASSWORD)[0] == 404


def test_lengths_of_queues_need_the_password(closed_flower: Flower) -> None:
    assert ask(f"{closed_flower.url}/api/queues/length")[0] == 401
    status, text, _ = ask(f"{closed_flower.url}/api/queues/length", PASSWORD)
    assert (status, json.loads(text)) == (200, {"active_queues": []}), "no worker is there"


@pytest.mark.parametrize("path", ACTIONS)
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (TOKEN, 401),
        (PASSWORD, 403),
        ({**PASSWORD, "Cookie": "_xsrf=0123", "X-XSRFToken": "4567"}, 403),
        ({**PASSWORD, **TOKEN, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**PASSWORD, **TOKEN, "Origin": "http://elsewhere.example.com"}, 403),
        ({**PASSWORD, **TOKEN, "Origin": "null"}, 403),
        ({**PASSWORD, **TOKEN, "Origin": "http://["}, 403),
        ({**PASSWORD, **TOKEN, "Referer": "http://elsewhere.example.com/"}, 403),
        ({**PASSWORD, **TOKEN, "Referer": "http://["}, 403),
        ({**PASSWORD, **TOKEN, "Referer": ""}, 403),
    ],
)
def test_an_action_needs_password_token_and_same_origin(
    closed_flower: Flower, path: str, headers: dict[str, str], expected: int
) -> None:
    assert ask(closed_flower.url + path, headers, post=True)[0] == expected
    nobody = path.replace("desk", "nobody").replace(CALL, "nobody")
    assert ask(closed_flower.url + nobody, {**PASSWORD, **TOKEN}, post=True)[0] == 404, "with all three it is accepted"


def test_where_a_request_comes_from_counts_with_an_open_api(start_flower: StartFlower) -> None:
    opened = start_flower(FLOWER_UNAUTHENTICATED_API="true").url
    elsewhere = "http://elsewhere.example.com"
    unknown, refused = 404, 403
    for headers, expected in (
        ({}, unknown),
        ({"Origin": opened}, unknown),
        ({"Referer": f"{opened}/mcp/servers/desk"}, unknown),
        ({"Origin": opened, "Referer": f"{elsewhere}/"}, unknown),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://behind-a-proxy.example.com"}, unknown),
        ({"Origin": "null"}, refused),
        ({"Origin": "null", "Referer": f"{opened}/mcp"}, refused),
        ({"Origin": elsewhere}, refused),
        ({"Referer": f"{elsewhere}/"}, refused),
        ({"Sec-Fetch-Site": "cross-site", "Origin": opened}, refused),
    ):
        for path in ("/mcp/api/servers/nobody/refresh", "/mcp/inbox/nobody"):
            assert ask(opened + path, {**TOKEN, **headers}, post=True)[0] == expected, (path, headers)


def test_a_get_does_nothing(closed_flower: Flower) -> None:
    assert ask(closed_flower.url + ACTIONS[0], PASSWORD)[0] == 405


@pytest.mark.parametrize("path", PAGES + DATA)
def test_with_oauth_a_page_redirects_to_the_sign_in(read_only_flower: Flower, path: str) -> None:
    for headers in ({}, signed_in("eve@example.com"), {"Cookie": "user=sam@example.com"}):
        status, text, found = ask(read_only_flower.url + path, headers)
        assert (status, found["Location"].partition("?")[0], "desk" in text) == (302, "/login", False)
    assert ask(read_only_flower.url + path, signed_in("sam@example.com"))[0] == 200


def test_read_only_has_no_buttons_and_refuses_actions(read_only_flower: Flower) -> None:
    headers = signed_in("sam@example.com")
    assert "data-action" not in ask(f"{read_only_flower.url}/mcp/servers/desk", headers)[1]
    for path in ACTIONS:
        status, text, _ = ask(read_only_flower.url + path, {**headers, "X-XSRFToken": "0123"}, post=True)
        assert (status, text) == (403, "Read only mode is enabled")


def test_the_pages_work_behind_a_password_and_a_prefix(closed_flower: Flower, client: Any, open_page: OpenPage) -> None:
    write_health(client, FLEET)
    page = open_page(f"{closed_flower.url}/mcp", http_credentials={"username": "sam", "password": "opensesame"})
    page.get_by_role("link", name="desk", exact=True).click()
    page.wait_for_url("**/ops/flower/mcp/servers/desk")
    assert "Flower" in page.title()
    asked: list[int] = []
    page.on("response", lambda response: "live" in response.url and asked.append(response.status))
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.get_by_role("button", name="Refresh tools").click()
    page.locator(".toast.text-bg-danger", has_text="did not answer").wait_for()
    assert 200 in asked


@pytest.mark.parametrize("path", PAGES)
def test_pages_use_only_flowers_address_and_are_not_cached(open_flower: Flower, path: str) -> None:
    _, text, headers = ask(open_flower.url + path)
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
    assert policy["frame-ancestors"] == "'none'"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "<script>" not in text
    assert ' style="' not in text


@pytest.mark.parametrize("path", ["/mcp?live", "/mcp/servers/desk?live", "/mcp/calls?live"])
def test_an_unchanged_page_is_not_sent_again(closed_flower: Flower, path: str) -> None:
    def is_sent_once() -> bool:
        status, text, headers = ask(closed_flower.url + path, PASSWORD)
        assert (status, "<html" in text, bool(text)) == (200, False, True)
        assert float(headers["Refresh-After"]) >= 5
        return ask(closed_flower.url + path, {**PASSWORD, "If-None-Match": headers["Etag"]})[:2] == (304, "")

    wait_until(is_sent_once, "nothing has changed, such as the minute")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/mcp/servers/nobody", 404),
        ("/mcp/servers/%3Cscript%3E", 404),
        ("/mcp/api/servers/nobody", 404),
        ("/mcp/api/calls/nobody", 404),
        ("/mcp/api/calls?outcome=fine", 400),
        ("/mcp/api/calls?after=yesterday", 400),
        ("/mcp/calls?after=%3Cscript%3E", 400),
        ("/mcp/calls/x?at=now", 400),
        ("/mcp/calls/x?at=99999999999999999999", 400),
        ("/mcp/calls?since=yesterday", 400),
        ("/mcp/calls?last=forever", 400),
        ("/mcp/nothing", 404),
        ("/mcp/api/nothing", 404),
        ("/mcp/static/../tools.py", 403),
        ("/mcp/static/nothing.js", 404),
        ("/mcp?order=%00&status=%F0%9F%92%A9", 200),
    ],
)
def test_wrong_addresses_get_an_error_status(open_flower: Flower, path: str, expected: int) -> None:
    status, text, headers = ask(open_flower.url + path)
    assert status == expected
    assert "Traceback" not in text
    assert "<script>" not in text
    if expected in (400, 404) and path.startswith(("/mcp/servers", "/mcp/calls", "/mcp/nothing")):
        assert 'aria-label="MCP pages"' in text, "with a way back"
    if "/api/" in path:
        assert json.loads(text)["error"]
        assert headers["Content-Type"].startswith("application/json")


def test_the_json_has_the_data_of_the_pages(open_flower: Flower, client: Any) -> None:
    write_health(client, FLEET)

    def read() -> Any:
        (server,) = json.loads(ask(f"{open_flower.url}/mcp/api/servers")[1])["servers"]
        return server["workers"] and server

    server = wait_until(read, "a snapshot with the workers")
    assert (server["server"], server["workers"]) == ("desk", ["worker@alpha", "worker@beta"])
    assert len(server["minutes"]) == 60
    assert server["calls"] == sum(minute["calls"] for minute in server["minutes"]) > 0
    assert server["p95_s"] > server["p50_s"] > 0
    assert abs(server["minutes"][-1]["at"] - time.time()) < 120
    one = json.loads(ask(f"{open_flower.url}/mcp/api/servers/desk")[1])
    assert [tool["tool"] for tool in one["tools"]] == ["create_pods", "get_pods", "list_pods"]
    assert one["workers"][0]["max_concurrency"] == 128


@pytest.mark.parametrize(
    ("reason", "calls", "count"), [("approval", "calls", "parked"), ("task", "tasks", "parked_tasks")]
)
def test_a_list_that_is_cut_says_how_many_there_are(
    open_flower: Flower, client: Any, reason: str, calls: str, count: str
) -> None:
    before = json.loads(ask(f"{open_flower.url}/mcp/api/inbox")[1])[count]
    tags = [f"cut-{number}" for number in range(201 - before)]
    for tag in tags:
        write_parked(client, tag, reason=reason)
    found = json.loads(ask(f"{open_flower.url}/mcp/api/inbox")[1])
    page = ask(f"{open_flower.url}/mcp/inbox")[1]
    client.hdel(keys.UNACKED, *tags)
    for places in (keys.PARKED, keys.inbox_key("people"), keys.inbox_key("task")):
        client.zrem(places, *(f"mcp.desk\n{tag}" for tag in tags))
    client.delete(*map(keys.parked_key, tags))
    assert (len(found[calls]), found[count]) == (200, 201)
    assert "200 of 201" in page


def test_flowers_list_of_tasks_leads_to_the_calls_that_failed(closed_flower: Flower) -> None:
    _, page, _ = ask(f"{closed_flower.url}/tasks", PASSWORD)
    banner = page.partition('id="mcp-banner"')[2].partition("</div>")[0]
    assert "A failed tool call is a successful task" in banner
    link = banner.partition('href="')[2].partition('"')[0]
    assert link == "/ops/flower/mcp/calls?outcome=not_ok"
    address = closed_flower.url.removesuffix("/ops/flower")
    assert ask(address + link, PASSWORD)[0] == 200

"""Fixtures: Flower with the MCP pages, and one browser per module, whose event loop runs in this thread."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from tests.chromium import Browser, Page, open_browser
from tests.processes import Flower, wait_until

StartFlower = Callable[..., Flower]


def wait_on(page: Page, condition: Callable[[], Any], what: str) -> None:
    """Wait until something is true on a live page; showing it again and again makes it update sooner."""

    def look() -> Any:
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        return condition()

    wait_until(look, what)


def wait_until_loaded(page: Page) -> None:
    """Wait for the content of all that is open."""
    page.locator("details[open] > [data-later]").first.wait_for(state="detached")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def start_flower(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartFlower]:
    """Starts Flower with options and environment variables; it ends with the module."""
    with ExitStack() as stack:

        def start(*options: str, redis_url: str = redis_url, **environment: str) -> Flower:
            flower = Flower(tmp_path_factory.mktemp("flower"), redis_url, options, environment)
            stack.callback(flower.stop)
            return flower

        yield start
    with redis.Redis.from_url(redis_url) as client:
        denied = client.acl_log()
    assert not denied, f"Flower was denied what it needs: {denied}"


class Watch:
    """Errors of a page: script errors, violations of its policy, requests to other hosts."""

    def __init__(self, page: Page, origin: str) -> None:
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        page.on("request", lambda request: request.url.startswith(f"{origin}/") or self.errors.append(request.url))


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address in a new window; errors there fail the test afterwards."""
    with ExitStack() as stack:
        watches: list[Watch] = []

        def open_(url: str, **options: object) -> Page:
            context = browser.new_context(**options)  # pyright: ignore[reportArgumentType]
            stack.callback(context.close)
            context.set_default_timeout(30_000)
            page = context.new_page()
            watches.append(Watch(page, "/".join(url.split("/")[:3])))
            page.goto(url)
            return page

        yield open_
    errors = [error for watch in watches for error in watch.errors]
    assert not errors, f"on the pages: {errors}"

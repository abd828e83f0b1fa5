"""The MCP pages in a browser, with a running worker, beat and Flower: content, live updates, hostile texts."""

import json
import re
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.tool_names import listed_name
from tests.chromium import Browser, Page
from tests.conftest import StartWorker
from tests.dashboard.conftest import StartFlower, wait_on, wait_until_loaded
from tests.processes import DEMO_SERVER, Flower, ServiceProcess, Worker, wait_until
from tests.servers import hostile_words, listing_file
from tests.warm_start import warm_command

OpenPage = Callable[..., Page]
MARK = "window.thisPageWasNotReloaded = true"
ACT = {"name": "act", "inputSchema": {"type": "object"}}
IS_MARKED = "window.thisPageWasNotReloaded === true"


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tools of a server are that change."""
    directory = tmp_path_factory.mktemp("lists")
    (directory / "pinned").write_text(json.dumps([{**ACT, "description": "acts"}]))
    return directory


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, browser: Browser, lists: Path) -> Iterator[Worker]:
    servers = {
        "desk": {**DEMO_SERVER, "max_concurrency": 3, "masking": {"patterns": ["ACME-[0-9]+"]}},
        "hostile": warm_command(hostile_words.__file__),
        "pinned": {**warm_command(listing_file.__file__, str(lists / "pinned")), "pin": "block"},
        "gone": {"command": "no-such-command-anywhere", "required": False},
    }
    worker = start_worker(servers, arguments=["-E", "-c", "16"])
    command = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "beat", "-l", "INFO"]
    beat = ServiceProcess(command, worker.log_path.parent / "beat.log", worker.environment, worker.log_path.parent)
    yield worker
    beat.stop()


@pytest.fixture(scope="module")
def app(worker: Worker, redis_url: str) -> Iterator[TarsyApp]:
    app = build_app({"broker_url": redis_url, "result_backend": redis_url})
    yield app
    app.close()


@pytest.fixture(scope="module")
def flower(worker: Worker, start_flower: StartFlower) -> Flower:
    return start_flower(TARSY_MCP_CONFIG=worker.environment["TARSY_MCP_CONFIG"], FLOWER_UNAUTHENTICATED_API="true")


def call(name: str, arguments: dict[str, Any]) -> str:
    """Make a call; its task's id."""
    with ToolExecutor(timeout_s=30, agent_id="sre", run_id="r7") as tools:
        pending = tools.submit(ToolCall(id="call_1", name=name, arguments=arguments))
        assert pending.result(timeout_s=30).outcome in (Outcome.OK, Outcome.TOOL_ERROR)
        return pending.id


ATTACKING = listed_name(hostile_words.TOOL)


def call_hostile(app: TarsyApp, tool: str, arguments: dict[str, Any]) -> str:
    """The same for a server whose tools have names that an executor would refuse."""
    task_id = str(uuid.uuid4())
    info = {"v": 1, "call_id": hostile_words.ATTACK, "agent_id": hostile_words.ATTACK, "run_id": hostile_words.ATTACK}
    result = app.send_task("tarsy.call_tool", ["hostile", tool, arguments, info], task_id=task_id).get(timeout=30)
    assert result["outcome"] in ("ok", "tool_error"), result
    return task_id


def row(page: Page, server: str) -> Any:
    return page.locator(f"#server-{server}")


def test_the_list_shows_each_server_and_updates_itself(flower: Flower, open_page: OpenPage) -> None:
    call("desk.echo", {"text": "before"})
    page = open_page(f"{flower.url}/mcp")
    page.evaluate(MARK)
    assert page.locator("nav .nav-link.active").inner_text() == "MCP"
    wait_on(page, row(page, "desk").get_by_text("healthy", exact=True).count, "desk is healthy")
    wait_on(page, row(page, "gone").get_by_text("unhealthy", exact=True).count, "gone is not")
    assert "no-such-command-anywhere" in row(page, "gone").inner_text()
    shown = row(page, "desk").inner_text()
    assert "stdio · MCP 2026-07-28" in shown
    wait_on(page, lambda: re.search(r"0\s*/ 3", row(page, "desk").inner_text()), "the limit of calls in flight")
    assert row(page, "desk").locator("svg.mcp-strip rect.healthy").count() >= 1
    wait_on(page, row(page, "desk").locator("svg.mcp-spark").count, "the call is counted")
    calls = row(page, "desk").locator("[data-label='Calls/h']")
    before = int(calls.inner_text())
    for _ in range(2):
        call("desk.order", {"item": "unicorn", "count": 1})
    wait_until(lambda: int(calls.inner_text()) >= before + 2, "the calls are counted")
    wait_on(page, row(page, "desk").locator("a.mcp-tool-error").count, "the tool's errors are counted")
    assert row(page, "desk").locator("[data-label='Failures/h']").inner_text() == "0", "they are no failures"
    assert page.evaluate(IS_MARKED)
    page.goto(f"{flower.url}/mcp/servers/desk")
    failure = page.locator(".mcp-error.tool_error .mcp-last-error")
    assert failure.inner_text().startswith("Last tool error: TOOL_ERROR order")
    assert "unicorn" in failure.inner_text(), "with its text, not only in a tooltip"


def test_servers_are_found_by_name_and_filtered_by_status(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp?order=name")
    page.get_by_label("Find a server").fill("HOST")
    assert row(page, "hostile").is_visible()
    assert not row(page, "desk").is_visible()
    page.get_by_role("link", name=re.compile("^Unhealthy")).click()
    row(page, "gone").wait_for()
    assert page.locator("#mcp-server-rows tr").count() == 1


def test_the_page_of_a_server_shows_its_tools_calls_and_sessions(flower: Flower, open_page: OpenPage) -> None:
    task_id = call("desk.quote", {"item": "rope"})
    page = open_page(f"{flower.url}/mcp")
    page.get_by_role("link", name="desk", exact=True).click()
    page.locator("svg.mcp-chart").first.wait_for()
    tool = page.locator("#tool-quote")
    assert not tool.get_by_text("What a number of items costs.").is_visible()
    tool.locator("summary").first.click()
    tool.get_by_text("What a number of items costs.").wait_for()
    tool.get_by_text("Annotations: read-only, idempotent.").wait_for()
    assert tool.get_by_role("row", name="item").inner_text().split()[:2] == ["item*", "string"]
    tool.get_by_text("JSON Schema").click()
    assert '"required": [\n    "item"\n  ]' in tool.locator("pre").inner_text()
    wait_on(page, tool.locator("svg.mcp-outcomes").count, "the call is counted")
    tool.locator("svg.mcp-histogram").wait_for()
    sessions = page.locator(".mcp-sessions").text_content() or ""
    assert [word for word in ("Transport", "w0@", "tarsy-tasks demo 1.0") if word not in sessions] == []
    wait_on(page, page.locator(f"a[href*='{task_id}']").count, "the call is listed")
    assert tool.get_by_text("What a number of items costs.").is_visible(), "an opened tool stays open"


def test_the_page_of_a_call_shows_its_timeline_and_result(flower: Flower, open_page: OpenPage) -> None:
    task_id = call("desk.echo", {"text": "api_key: 0123456789abcdef and a rope for ACME-4711"})
    page = open_page(f"{flower.url}/mcp/calls")
    page.locator(f"a[href*='{task_id}']").first.click()
    page.locator("svg.mcp-bar rect.sent").wait_for(state="attached")
    page.get_by_role("heading", name="Timeline").wait_for()
    assert page.locator(".mcp-step").all_inner_texts() == ["queued", "prepared", "sent attempt 1", "answered"]
    assert set(page.locator(".mcp-where").all_inner_texts()[1:]) == {f"w0@{socket.gethostname()}"}
    read = page.locator(".mcp-content").inner_text()
    assert "and a rope" in read
    assert not [secret for secret in ("0123456789abcdef", "ACME-4711") if secret in page.content()]
    assert page.locator("h1").inner_text() == "desk.echo"
    for link, word in (("sre", "agent_id=sre"), ("r7", "run_id=r7"), ("call_1", "call_id=call_1")):
        assert word in (page.locator(".detail-list").get_by_role("link", name=link).get_attribute("href") or "")
    page.goto(f"{flower.url}/mcp/calls/{task_id}")
    page.locator(".mcp-content").wait_for()
    page.goto(f"{flower.url}/mcp/calls/{uuid.uuid4()}")
    page.get_by_text("Unknown call").wait_for()


def test_calls_are_filtered(flower: Flower, open_page: OpenPage) -> None:
    call("desk.order", {"item": "unicorn", "count": 1})
    page = open_page(f"{flower.url}/mcp/calls")
    page.get_by_label("Server").fill("desk")
    page.get_by_label("Tool", exact=True).fill("ord*")
    page.get_by_label("Outcome").select_option("tool_error")
    page.get_by_role("button", name="Find").click()
    page.wait_for_url("**outcome=tool_error**")
    page.locator(".mcp-calls tbody tr").first.wait_for()
    names = {name.inner_text() for name in page.locator(".mcp-calls tbody th").all()}
    assert names == {"desk.order"}
    assert page.get_by_label("Tool", exact=True).input_value() == "ord*"


def test_buttons_reconnect_a_server_and_refresh_its_tools(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/servers/desk")
    opened = page.locator(".mcp-sessions [data-label=Sessions]")
    before = int(opened.inner_text().split()[0])
    page.get_by_role("button", name="Refresh tools").click()
    page.locator(".toast", has_text=re.compile("listed the tools|in progress")).wait_for()
    page.get_by_role("button", name="Reconnect").click()
    page.locator(".toast", has_text=re.compile("opened a new session|in progress")).wait_for()
    wait_on(page, lambda: int(opened.inner_text().split()[0]) > before, "the new session is counted")
    page.goto(f"{flower.url}/mcp/servers/gone")
    page.get_by_role("button", name="Reconnect").click()
    page.locator(".toast.text-bg-danger", has_text="no-such-command-anywhere").wait_for()


def test_a_running_call_is_shown_and_cancelled(flower: Flower, open_page: OpenPage) -> None:
    with ToolExecutor(timeout_s=60, agent_id="sre", run_id="r7") as tools:
        pending = tools.submit(ToolCall(id="call_1", name="desk.wait", arguments={"seconds": 50}))
        page = open_page(f"{flower.url}/mcp/servers/desk")
        running = page.locator(f"[id='running-{pending.id}']")
        wait_on(page, running.count, "the worker reports the call")
        assert "wait" in running.inner_text()
        running.get_by_role("link", name="wait").click()
        page.get_by_text("Running on w0@").wait_for()
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Cancel").click()
        page.locator(".toast", has_text="cancels the call").wait_for()
        assert pending.result(timeout_s=30).outcome is Outcome.CANCELLED
        wait_on(page, page.locator(".mcp-outcome.cancelled").count, "it has ended")
        page.goto(f"{flower.url}/mcp/servers/desk")
        wait_on(page, lambda: not page.locator(f"[id='running-{pending.id}']").count(), "it runs no more")


def test_lines_of_a_server_are_shown_masked(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/servers/hostile")
    lines = page.locator(".mcp-log")
    wait_on(page, lines.count, "the worker has written its lines")
    assert hostile_words.ATTACK in lines.inner_text()
    assert hostile_words.SECRET not in page.content()
    assert page.evaluate("window.hacked") is None
    assert "hostile_words.py" in page.locator(".mcp-target").inner_text()


def test_an_unavailable_server_says_why_and_what_to_do(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/servers/gone")
    why = page.locator(".alert-danger")
    wait_on(page, why.locator(".mcp-remedy").count, "the worker has reported it")
    assert "no-such-command-anywhere" in why.inner_text()
    assert "What to do:" in why.inner_text()
    with ToolExecutor(timeout_s=30) as tools:
        assert "continue without it" in tools.execute("gone.tool").content
    last = page.locator(".mcp-error.failed")
    wait_on(page, last.count, "its last failure")
    assert "The tool did not run." in last.inner_text()
    assert "continue without it" not in page.locator("#mcp-live").inner_text(), "that is for models"
    wait_on(page, page.get_by_text("No call was sent to the server").count, "why it has no latency")
    assert page.locator(".mcp-target").inner_text() == "no-such-command-anywhere"


def test_texts_of_servers_and_models_are_never_markup(flower: Flower, app: TarsyApp, open_page: OpenPage) -> None:
    attack = hostile_words.ATTACK
    tasks = [
        call_hostile(app, ATTACKING, {"text": attack}),
        call_hostile(app, "fail", {}),
    ]
    page = open_page(f"{flower.url}/mcp")
    wait_on(page, row(page, "hostile").locator("a.mcp-tool-error").count, "the error is counted")
    page.goto(f"{flower.url}/mcp/servers/hostile")
    for tool in page.locator(".mcp-tool").all():
        tool.locator("summary").first.click()
    wait_until_loaded(page)
    assert page.locator(".mcp-description").first.inner_text().startswith("</title></script><script>")
    assert page.locator(".mcp-tool-name", has_text=ATTACKING).count() == 1
    assert hostile_words.SECRET not in page.content(), "texts of servers about their tools are masked too"
    for task_id in tasks:
        page.goto(f"{flower.url}/mcp/calls/{task_id}")
        assert attack in page.locator(".mcp-content").inner_text()
        assert page.evaluate("window.hacked") is None
    for path in ("/mcp/calls", "/mcp/calls?server=%22%3E%3Cscript%3Ewindow.hacked%3D1%3C/script%3E", "/tasks"):
        page.goto(f"{flower.url}{path}")
        page.locator("tbody tr, .mcp-nothing").first.wait_for()
        assert page.evaluate("window.hacked") is None
    page.goto(f"{flower.url}/mcp/servers/hostile")
    page.evaluate(MARK)
    call_hostile(app, ATTACKING, {"text": attack})
    wait_on(page, page.locator(".mcp-tool-outcomes", has_text="2 calls").count, "the call is counted")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate(IS_MARKED)


def test_flowers_own_list_shows_tools_outcomes_and_no_arguments(flower: Flower, open_page: OpenPage) -> None:
    task_id = call("desk.order", {"item": "unicorn", "count": 77})
    page = open_page(f"{flower.url}/tasks")
    line = page.locator(f"#tasks-table tbody tr[id='{task_id}']")

    def shown() -> bool:
        page.reload()
        page.locator("#tasks-table tbody tr").first.wait_for()
        return line.count() == 1 and "tool_error" in line.inner_text()

    wait_until(shown, "the call in Flower's list")
    assert "desk.order" in line.inner_text()
    assert "tool_error TOOL_ERROR" in line.inner_text()
    assert "tarsy.check_server" not in page.locator("#tasks-table").inner_text(), "checks are not listed"
    line.get_by_role("link", name="desk.order").click()
    page.wait_for_url("**name=desk.order**")
    line.wait_for()
    assert page.locator("#tasks-table tbody tr", has_text="desk.echo").count() == 0
    page.goto(f"{flower.url}/task/{task_id}")
    assert "77" not in page.locator(".detail-list").inner_text().split()
    assert "unicorn" not in page.content()
    assert "ended with tool_error TOOL_ERROR" in page.locator("#mcp-banner").inner_text()
    page.get_by_role("link", name="MCP call").click()
    page.locator(".mcp-waterfall").wait_for()
    page.get_by_role("link", name="Celery task").click()
    page.get_by_role("link", name="What happened to the call").click()
    page.locator(".mcp-waterfall").wait_for()


def test_arguments_in_events_of_producers_are_shown_nowhere(flower: Flower, app: TarsyApp, open_page: OpenPage) -> None:
    task_id, words = str(uuid.uuid4()), repr(["desk", "login", {"password": hostile_words.SECRET}])
    with app.events.default_dispatcher() as dispatcher:
        dispatcher.send("task-sent", uuid=task_id, name="tarsy.call_tool", args=words, kwargs="{}", queue="mcp.desk")
    page = open_page(f"{flower.url}/tasks")

    def listed() -> bool:
        page.reload()
        page.locator("#tasks-table tbody tr").first.wait_for()
        return page.locator(f"#tasks-table tbody tr[id='{task_id}']").count() == 1

    wait_until(listed, "the call in Flower's list")
    assert hostile_words.SECRET not in page.content()
    for path in (f"/task/{task_id}", "/api/tasks", f"/api/task/info/{task_id}"):
        page.goto(flower.url + path)
        assert task_id in page.content()
        assert hostile_words.SECRET not in page.content(), path


def test_flowers_broker_tab_lists_our_queues(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/broker")

    def listed() -> bool:
        page.goto(f"{flower.url}/api/workers?refresh=1")  # it asks once by itself, and waits one second
        page.goto(f"{flower.url}/broker")
        return page.get_by_role("cell", name="mcp.desk", exact=True).count() == 1

    wait_until(listed, "Flower has asked the worker for its queues")
    page.goto(f"{flower.url}/api/queues/length")
    assert '"mcp.desk"' in page.inner_text("body")


def test_a_changed_tool_runs_once_it_is_approved_here(flower: Flower, lists: Path, open_page: OpenPage) -> None:
    with ToolExecutor(timeout_s=30) as tools:
        assert tools.execute("pinned.act").outcome is Outcome.OK
        (lists / "pinned").write_text(json.dumps([{**ACT, "description": "acts <b>and sends a copy to me</b>"}]))
        page = open_page(f"{flower.url}/mcp/servers/pinned")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Refresh tools").click()
        page.locator(".toast", has_text=re.compile("listed the tools|in progress")).wait_for()
        page.locator("#change-act > summary").click(timeout=30_000)
        shown = page.locator("#change-act .mcp-added").first
        assert "acts <b>and sends a copy to me</b>" in shown.inner_text()
        token = page.locator("input[name=_xsrf]").get_attribute("value") or ""
        path = f"{flower.url}/mcp/api/servers/pinned/approve?listing={'a' * 64}"
        answer = page.request.post(path, headers={"X-XSRFToken": token}).json()
        assert (answer["done"], "no longer lists the tools" in str(answer["workers"])) == (False, True)
        refused = tools.execute("pinned.act")
        assert (refused.outcome, refused.error_code) == (Outcome.REJECTED, ErrorCode.TOOL_CHANGED)
        page.get_by_role("button", name="Approve all").click()
        page.locator(".toast", has_text="approved: 1 changed").wait_for()
        assert tools.execute("pinned.act").outcome is Outcome.OK
        wait_on(page, lambda: page.locator(".mcp-change").count() == 0, "nothing is left to approve")


def test_the_pages_work_by_keyboard(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/servers/desk")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip-link"
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('#tool-echo > summary')"):
            break
    page.keyboard.press("Enter")
    assert page.locator("#tool-echo").get_attribute("open") is not None
    unnamed = page.evaluate(
        "[...document.querySelectorAll('#mcp-live :is(svg, input, select, button)')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.innerText || e.labels?.length || e.type === 'hidden')).length"
    )
    assert unnamed == 0


@pytest.mark.parametrize("path", ["/mcp", "/mcp/servers/desk", "/mcp/servers/hostile", "/mcp/calls", "/mcp/calls/"])
def test_a_phone_shows_the_pages_without_scrolling_sideways(flower: Flower, open_page: OpenPage, path: str) -> None:
    if path == "/mcp/calls/":
        path += call("desk.echo", {"text": "a rope" * 100})
    page = open_page(f"{flower.url}{path}", viewport={"width": 375, "height": 812})
    for tool in page.locator(".mcp-tool > summary").all():
        tool.click()
    wait_until_loaded(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_the_pages_have_a_dark_and_a_light_theme(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp", color_scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name=re.compile("Select theme")).click()
    page.get_by_role("button", name="Light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    assert page.locator("html").get_attribute("data-bs-theme") == "light"


def test_a_hidden_page_sends_no_requests(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp")
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.get_by_text("Paused", exact=True).wait_for()
    with page.expect_request(lambda request: "live" in request.url):
        page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.get_by_text("Live", exact=True).wait_for()

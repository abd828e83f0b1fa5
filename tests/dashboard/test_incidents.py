"""The pages as an operator sees them while servers fail: what failed, why, since when, and what to do."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.broker.parked_views import TASK
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.telemetry.audit import AuditEntry
from tests.chromium import Browser, Page
from tests.dashboard.conftest import StartFlower, wait_on, wait_until_loaded
from tests.dashboard.incidents import (
    QUESTION,
    change_tools,
    write_alerts,
    write_cut,
    write_dead_letter,
    write_limits,
    write_lines,
    write_parked,
    write_redelivered,
    write_running,
)
from tests.dashboard.records import FIRST_CALL, FleetServer, write_calls, write_fleet, write_health
from tests.processes import Flower

OpenPage = Callable[..., Page]
RUNNING = "9d0f1d3c-0000-4000-8000-000000000001"
DEAD = "9d0f1d3c-0000-4000-8000-000000000002"
REDELIVERED = "9d0f1d3c-0000-4000-8000-000000000003"
CUT = {True: "9d0f1d3c-0000-4000-8000-000000000004", False: "9d0f1d3c-0000-4000-8000-000000000005"}
"""By whether the whole result was kept."""
PARKED = "9d0f1d3c-0000-4000-8000-000000000006"
WITH_TASK = "9d0f1d3c-0000-4000-8000-000000000008"
ASKING = "9d0f1d3c-0000-4000-8000-000000000009"
UNREADABLE = "9d0f1d3c-0000-4000-8000-000000000007"
REASON = "MCP server `k8s` is not available: it exited with code 1. <b>Last output</b>: 'no module express'."
FLEET = [
    FleetServer("desk", tools=4, calls=12, refusing=0.5),
    FleetServer("k8s", tools=4, failing=0.4, reason=REASON, code=ErrorCode.SERVER_UNAVAILABLE),
    FleetServer("large", tools=500),
]
PATHS = [
    *("/mcp", "/mcp/servers/k8s", "/mcp/servers/desk", "/mcp/calls?outcome=not_ok", f"/mcp/calls/{FIRST_CALL}"),
    *(
        f"/mcp/calls/{CUT[True]}",
        f"/mcp/calls/{REDELIVERED}",
        f"/mcp/calls/{RUNNING}",
        f"/mcp/calls/{PARKED}",
        f"/mcp/inbox/{PARKED}",
        f"/mcp/inbox/{ASKING}",
        "/mcp/inbox",
        "/mcp/alerts",
        "/mcp/dead-letters",
    ),
]
CONTRASTS = (Path(__file__).parent / "contrast.js").read_text()


@pytest.fixture(scope="module")
def digest(table: Any) -> Iterator[str]:
    """The state of all servers; the digest of the changed tools of one."""
    table.flushall()  # workers of other modules count calls, too
    write_fleet(table, FLEET)
    first, *_ = write_calls(table, FLEET, 120)
    write_alerts(table, "k8s", ["unhealthy", "healthy", "unhealthy"], "<b>no module express</b>")
    write_dead_letter(table, DEAD, first)
    write_dead_letter(table, UNREADABLE, AuditEntry(at=1, outcome=Outcome.UNKNOWN, error="It cannot be read."))
    write_parked(table, PARKED, agent_id="sre")
    write_parked(table, WITH_TASK, reason=TASK, message="<b>step 3</b>", server="k8s")
    write_parked(table, ASKING, reason=INPUT_REQUIRED, questions=[QUESTION])
    write_limits(table, "desk", "<b>sre</b>")
    write_redelivered(table, REDELIVERED, first, "worker@<b>lost</b>")
    for is_kept, task_id in CUT.items():
        write_cut(table, task_id, first, is_kept=is_kept)
    write_lines(table, "k8s", ["starting <b>soon</b>", "Error: no module express"])
    yield change_tools(table, "desk")
    table.flushall()


@pytest.fixture(scope="module")
def flower(digest: str, browser: Browser, start_flower: StartFlower) -> Flower:
    return start_flower(FLOWER_UNAUTHENTICATED_API="true")


def open_details(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    wait_until_loaded(page)


@pytest.fixture(autouse=True)
def _workers_report(table: Any, flower: Flower) -> None:
    """What workers write again and again, and what expires when they do not."""
    write_health(table, FLEET)
    write_running(table, [(RUNNING, "desk", "wait")])


def test_tool_errors_and_failures_have_a_number_and_colour_each(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp?order=name")
    desk, k8s = page.locator("#server-desk"), page.locator("#server-k8s")
    assert desk.locator("[data-label='Failures/h']").inner_text() == "0", "it is healthy and only says no"
    refused, failed = desk.locator("a.mcp-tool-error"), k8s.locator("a.mcp-bad")
    assert (refused.count(), failed.count(), k8s.locator("a.mcp-tool-error").count()) == (1, 1, 0)
    colours = [each.evaluate("e => getComputedStyle(e).color") for each in (refused, failed)]
    assert len(set(colours)) == 2
    refused.click()
    page.wait_for_url("**outcome=tool_error**")
    outcomes = set(page.locator(".mcp-calls .mcp-outcome").all_inner_texts())
    assert outcomes == {"tool_error"}
    page.goto(f"{flower.url}/mcp/servers/desk")
    bars = page.locator("svg.mcp-chart .tool_error")
    assert bars.count() > 5
    assert page.locator("svg.mcp-chart .failed").count() == 0


def test_no_p95_is_above_the_slowest_call(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp")
    for name in ("desk", "k8s", "large"):
        server = json.loads(page.request.get(f"{flower.url}/mcp/api/servers/{name}").text())
        measured = [each for each in (server, *server["tools"]) if each["p95_s"] is not None]
        assert len(measured) > 4
        assert [each for each in measured if not each["p50_s"] <= each["p95_s"] <= each["slowest_s"]] == []
        assert max(each["p95_s"] or 0 for each in server["minutes"]) <= server["slowest_s"]


def test_a_server_shows_codes_cause_command_and_remedy(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/servers/k8s")
    why = page.locator(".alert-danger").inner_text()
    assert "it exited with code 1. <b>Last output</b>" in why
    assert "What to do: Check that the program starts" in why
    assert page.locator(".mcp-target").inner_text() == "npx -y @example/k8s-mcp --token ${TOKEN}"
    assert "Error: no module express" in page.locator(".mcp-log").inner_text()
    assert page.locator(".mcp-alerts tbody tr").count() == 2
    page.locator(".mcp-numbers", has_text="CALL_TIMEOUT").get_by_role("link", name="CALL_TIMEOUT").click()
    page.wait_for_url("**error_code=CALL_TIMEOUT**")
    assert set(page.locator(".mcp-calls .mcp-code").all_inner_texts()) == {"CALL_TIMEOUT"}


def test_a_call_shows_what_its_model_did_not_get(flower: Flower, open_page: OpenPage) -> None:
    shown: dict[bool, str] = {}
    for is_kept, task_id in CUT.items():
        page = open_page(f"{flower.url}/mcp/calls/{task_id}")
        shown[is_kept] = page.locator(".detail-row", has_text="Whole result").inner_text()
        assert "812\u202f345 characters of text, 70\u202f000 of the structured value" in shown[is_kept]
    assert f"20 KiB kept under {CUT[True]}" in shown[True]
    assert "The rest was not kept." in shown[False]
    page.goto(f"{flower.url}/mcp/calls/{REDELIVERED}")
    page.locator(".detail-row", has_text="Result size").wait_for()
    assert not page.locator(".detail-row", has_text="Whole result").count()


def test_who_sent_a_call_and_its_priority_are_shown(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/servers/desk")
    sender = page.locator(f"#running-{RUNNING} [data-label='Agent, run']")
    assert sender.inner_text().split() == ["sre", "r7", "by", "ops", "batch"]
    page.goto(f"{flower.url}/mcp/calls/{RUNNING}")
    assert "Sent by ops, with the priority batch." in page.locator(".alert-info").inner_text()
    page.goto(f"{flower.url}/mcp/calls/{REDELIVERED}")
    page.get_by_role("link", name="interactive").click()
    page.wait_for_url("**priority=interactive**")
    assert page.get_by_label("Priority").input_value() == "interactive"
    assert page.locator(".mcp-calls tbody tr").count() == 1
    assert page.locator(".mcp-calls [data-label='Agent, run']").inner_text().endswith("by ops interactive")


def test_the_id_of_a_call_leads_nowhere_else(table: Any, flower: Flower, open_page: OpenPage) -> None:
    write_running(table, [("../../servers/k8s/refresh", "desk", "wait")])
    page = open_page(f"{flower.url}/mcp/servers/desk")
    link = page.locator("a[href*='refresh']").get_attribute("href") or ""
    assert link == "/mcp/calls/..%2F..%2Fservers%2Fk8s%2Frefresh"
    page.goto(flower.url + link)
    action = page.locator("button[data-action$=cancel]").get_attribute("data-action")
    assert action == "/mcp/api/calls/..%2F..%2Fservers%2Fk8s%2Frefresh/cancel"


def test_the_bar_of_a_minute_links_to_its_calls(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/servers/desk")
    address = page.locator("svg.mcp-chart a").nth(5).get_attribute("href") or ""
    page.goto(flower.url + address)
    assert page.get_by_label("From, UTC").input_value()
    assert page.get_by_label("Server").input_value() == "desk"
    since, until = (int(address.partition(f"{word}=")[2].partition("&")[0]) for word in ("since", "until"))
    assert until - since == 60
    entries = json.loads(page.request.get(flower.url + address.replace("/mcp/", "/mcp/api/")).text())["calls"]
    assert all(since <= entry["at"] <= until + 1 and entry["server"] == "desk" for entry in entries)


def test_calls_are_found_by_time_worker_and_outcome(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/calls")
    page.get_by_role("link", name="Failures only").click()
    page.get_by_role("link", name="15 min").click()
    page.get_by_label("Worker").fill("worker@beta")
    page.get_by_role("button", name="Find").click()
    page.wait_for_url("**worker=worker%40beta**")
    query = page.url.partition("?")[2]
    assert "last=15m" in query
    found = json.loads(page.request.get(f"{flower.url}/mcp/api/calls?{query}").text())["calls"]
    assert all((each["worker"], each["outcome"]) in [("worker@beta", "timeout")] for each in found)
    assert page.locator(".mcp-calls tbody tr").count() == len(found)


def test_the_name_of_a_tool_opens_it(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/calls?server=k8s")
    page.locator(".mcp-calls tbody th a").first.click()
    page.wait_for_url("**/mcp/servers/k8s#tool-*")
    opened = page.locator(".mcp-tool[open]")
    opened.wait_for()
    assert f"#{opened.get_attribute('id')}" in page.url
    opened.locator(".mcp-description").wait_for()


def test_absolute_times_are_one_button_away_and_stay(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/calls")
    time = page.locator(".mcp-calls time").first
    assert "ago" in time.inner_text() or "now" in time.inner_text()
    assert "UTC" in (time.get_attribute("title") or "")
    page.get_by_role("button", name="Absolute times").click()
    assert time.inner_text().endswith(" UTC")
    page.reload()
    assert time.inner_text().endswith(" UTC")


def test_ids_are_copied(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/calls/{FIRST_CALL}")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as without https
    page.evaluate("document.addEventListener('copy', () => { window.copied = String(document.activeElement.value) })")
    page.get_by_role("button", name="Copy Task ID").click()
    page.locator(".toast", has_text=f"Copied: {FIRST_CALL}").wait_for()
    assert page.evaluate("window.copied") == FIRST_CALL


def test_changes_of_tools_are_shown_and_can_be_approved(flower: Flower, digest: str, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/servers/desk")
    assert page.locator(".mcp-change").count() == 3
    page.locator(".mcp-change", has_text="list_pods").locator("summary").click()
    diff = page.locator(".mcp-diff", has_text="Deletes everything")
    assert "<b>password: __MASKED__" in diff.locator(".mcp-added").first.inner_text()
    assert "hunter2" not in page.content()
    asked: list[str] = []
    page.on("dialog", lambda dialog: dialog.accept())
    page.on("request", lambda request: request.method == "POST" and asked.append(request.url))
    page.get_by_role("button", name="Approve all").click()
    page.locator(".toast.text-bg-danger", has_text="did not answer").wait_for()
    assert [url.rpartition("/")[2] for url in asked] == [f"approve?listing={digest}"]


def test_alerts_have_a_page(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/alerts")
    states = page.locator(".mcp-alerts .mcp-state").all_inner_texts()
    assert states == ["firing", "resolved"]
    assert "<b>no module express</b>" in page.locator(".mcp-alerts").inner_text()
    assert "1 firing" in page.locator("h1").inner_text()


def test_dead_letters_have_a_page(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/dead-letters")
    unreadable, letter = page.locator(f"#letter-{UNREADABLE}"), page.locator(f"#letter-{DEAD}")
    assert unreadable.get_by_role("link").inner_text() == UNREADABLE, "a call without a name has its id"
    assert "It cannot be read." in unreadable.inner_text()
    assert '{"namespace":"default"' in letter.inner_text()
    retry = letter.get_by_role("button", name="retry").get_attribute("data-copy")
    assert retry == f"tarsy-tasks dead-letters retry {DEAD}"
    letter.get_by_role("link").first.click()
    page.get_by_text("SET_ASIDE").first.wait_for()
    page.goto(f"{flower.url}/mcp/calls?error_code=SET_ASIDE")
    assert "–" in page.locator(".mcp-calls tbody th").all_inner_texts()


def test_a_call_that_waits_for_a_person_says_so(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/calls/{PARKED}")
    assert page.locator("h1").inner_text() == "desk.order"
    shown = page.locator(".alert-info").inner_text()
    assert "It waits for a person to approve it, until 20" in shown
    assert "do not call it again" not in shown, "that is for models"
    page.get_by_role("link", name="Approve or deny it").click()
    page.get_by_role("button", name="Approve").wait_for()
    assert "<b>pen</b>" in page.locator(".detail-list").inner_text()
    page.get_by_role("link", name="What happened to the call").click()
    page.wait_for_url(f"**/mcp/calls/{PARKED}")


def test_a_call_that_waits_for_its_server_says_so(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/inbox")
    row = page.locator(f"#task-{WITH_TASK}")
    assert "the server is unhealthy" in row.inner_text()
    assert row.locator(f"[data-copy='celery -A tarsy_tasks control revoke {WITH_TASK}']").count() == 1
    row.get_by_role("link").click()
    shown = page.locator(".alert-info").inner_text()
    assert "It waits for its task in the MCP server" in shown
    assert "The server last said: <b>step 3</b>" in shown
    assert page.request.get(f"{flower.url}/mcp/inbox/{WITH_TASK}").status == 404, "people decide nothing of it"
    page.goto(f"{flower.url}/mcp/calls/{ASKING}")
    assert "a person to answer what the MCP server asks" in page.locator(".alert-info").inner_text()
    page.get_by_role("link", name="Answer it").click()
    page.get_by_role("button", name="Send answer").wait_for()


def test_limits_are_shown_with_units(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/servers/desk")
    rows = page.locator("section[aria-labelledby=mcp-limits] tbody tr")
    rate, quota = rows.all()
    assert rate.inner_text().split("\t")[1:3] == ["all tools by all agents", "10/s"]
    assert quota.locator("[data-label=Permits]").inner_text() == "50 MB a day"
    assert quota.locator("[data-label='Used now']").inner_text() == "<b>sre</b>: 1.23 MB of 50 MB today"


def test_a_server_of_no_worker_says_what_to_do(table: Any, flower: Flower, open_page: OpenPage) -> None:
    for key in table.scan_iter("tarsy:health*"):
        table.delete(key)
    page = open_page(f"{flower.url}/mcp/servers/desk")
    wait_on(page, page.get_by_text("What to do: Start a worker").count, "the server is unknown")


def test_a_call_that_has_ended_cannot_be_cancelled(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/calls/{FIRST_CALL}")
    assert page.get_by_role("button", name="Cancel").count() == 0
    token = page.locator("input[name=_xsrf]").get_attribute("value") or ""
    path = f"{flower.url}/mcp/api/calls/{FIRST_CALL}/cancel"
    refused = page.request.post(path, headers={"X-XSRFToken": token})
    assert (refused.status, refused.text()) == (404, "This call is not running")
    assert page.request.post(path).status == 403, "and not at all without the token of the page"


def test_changes_are_announced_to_screen_readers(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp")
    assert page.locator("#mcp-live-status").get_attribute("role") == "status"
    announced = page.locator(".visually-hidden[role=status]")
    wait_on(page, lambda: announced.inner_text() == "2 of 3 servers are healthy", "how many are healthy")
    page.goto(f"{flower.url}/mcp/servers/k8s")
    assert page.locator(".visually-hidden[role=status]").inner_text() == "k8s is unhealthy"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_texts_have_enough_contrast(flower: Flower, open_page: OpenPage, scheme: str) -> None:
    page = open_page(f"{flower.url}/mcp", color_scheme=scheme)
    for path in PATHS:
        page.goto(flower.url + path)
        open_details(page)
        assert page.evaluate(CONTRASTS) == [], path


def test_a_phone_shows_all_of_it_without_scrolling_sideways(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp", viewport={"width": 390, "height": 844})
    for path in PATHS:
        page.goto(flower.url + path)
        open_details(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_a_laptop_shows_all_columns(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp", viewport={"width": 1280, "height": 800})
    hidden = "const table = document.querySelector('.mcp-servers'); table.scrollWidth - table.parentElement.clientWidth"
    assert page.evaluate(hidden) <= 0


def test_each_attempt_of_a_redelivered_call_has_its_worker(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/calls/{REDELIVERED}")
    bars = page.locator(".mcp-waterfall > li:not(.mcp-waterfall-axis)").all()
    shown = [(bar.locator(".mcp-step").inner_text(), bar.locator(".mcp-where").inner_text()) for bar in bars]
    assert shown == [
        ("queued", "queue"),
        ("sent attempt 1, worker lost or stopped", "worker@<b>lost</b>"),
        ("sent attempt 2, worker lost or stopped", "worker@alpha"),
        ("prepared", "worker@beta"),
        ("sent attempt 3", "worker@beta"),
        ("answered", "worker@beta"),
    ]
    assert page.locator(".mcp-bar rect.lost").count() == 2


def test_a_server_with_500_tools_is_shown(flower: Flower, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp/servers/large")
    tools = page.locator(".mcp-tool")
    assert tools.count() == 500
    assert page.locator(".mcp-parameters, .mcp-schema").count() == 0, "it is loaded when it is opened"
    tools.first.locator("summary").first.click()
    tools.first.locator(".mcp-parameters").wait_for()
    page.evaluate("document.querySelectorAll('.mcp-tool').forEach(each => { each.open = true })")
    wait_on(page, lambda: page.locator(".mcp-parameters").count() >= 50, "as many as one request loads")
    page.evaluate("document.querySelectorAll('.mcp-tool').forEach(each => { each.open = false })")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    wait_on(page, lambda: any(url.endswith("?live=") for url in asked[:-1]), "it was refreshed without them")
    assert page.locator(".mcp-parameters").count() >= 50, "what was loaded stays"
    page.get_by_label("Find a tool").fill("watch_pods_7")
    wait_on(page, lambda: tools.locator("visible=true").count() < 20, "the others are hidden")


def test_an_unknown_address_has_a_page_of_its_own(flower: Flower, open_page: OpenPage, browser: Browser) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        assert (answer := page.goto(f"{flower.url}/mcp/servers/nobody")) is not None
        assert (answer.status, page.locator("h1").inner_text()) == (404, "Not found")
        assert "Unknown MCP server 'nobody'" in page.content()
        page.get_by_role("link", name="All servers").click()
        page.locator("#server-desk").wait_for()

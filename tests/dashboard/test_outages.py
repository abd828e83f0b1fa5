"""The MCP pages when Redis is away or hangs, its data is damaged or from another version, or no worker writes."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.dashboard.recent_calls import KEPT
from tarsy_tasks.telemetry.audit import AuditEntry
from tests.chaos.faults import frozen
from tests.chromium import Browser, Page
from tests.dashboard.conftest import StartFlower, wait_on
from tests.dashboard.records import FleetServer, write_calls, write_fleet, write_health
from tests.processes import Flower, free_port, wait_until
from tests.redis_users import url_of
from tests.valkey import Valkey

OpenPage = Callable[..., Page]
FLEET = [FleetServer("desk", tools=3), FleetServer("shop", tools=3, calls=20)]


class StoppableValkey:
    """The module's own Redis, which can be stopped and started.

    Attributes:
        client: A client of the running one.
    """

    def __init__(self) -> None:
        self._port = free_port()
        self._stack = ExitStack()
        self.url = url_of(self._port)
        self.client: Any = None

    def start(self) -> None:
        self._stack.enter_context(Valkey(port=self._port))
        self.client = self._stack.enter_context(redis.Redis.from_url(self.url))

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def valkey() -> Iterator[StoppableValkey]:
    valkey = StoppableValkey()
    yield valkey
    valkey.stop()


@pytest.fixture(scope="module")
def flower(valkey: StoppableValkey, browser: Browser, start_flower: StartFlower) -> Flower:
    """Started while there is no Redis at all."""
    return start_flower(redis_url=valkey.url)


def data(url: str) -> tuple[int, Any]:
    try:
        with urlopen(url, timeout=20) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_pages_survive_an_outage_of_redis(flower: Flower, valkey: StoppableValkey, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp")
    page.get_by_text("There is no data yet").wait_for()
    assert data(f"{flower.url}/mcp/api/servers")[0] == 503
    for path in ("/mcp/servers/desk", "/mcp/calls", "/mcp/calls/x", "/mcp/alerts", "/mcp/dead-letters"):
        with urlopen(flower.url + path, timeout=20) as answer:
            assert "Redis cannot be read" in answer.read().decode()

    valkey.start()
    write_fleet(valkey.client, FLEET)
    write_calls(valkey.client, FLEET, 50)
    wait_on(page, page.locator("#server-desk").count, "the servers")
    assert page.locator("#mcp-outage").count() == 0
    one = open_page(f"{flower.url}/mcp/servers/desk")
    assert one.locator(".mcp-tool").count() == 3
    calls = open_page(f"{flower.url}/mcp/calls")
    call = open_page(f"{flower.url}/mcp/calls/00000000-0000-4000-8000-000000000007")
    name = call.locator("h1").inner_text()
    page.get_by_text("Live", exact=True).wait_for()

    valkey.stop()
    wait_on(
        page, page.locator("#mcp-outage", has_text="This is the last known state").count, "the outage is shown again"
    )
    wait_on(one, one.locator("#mcp-outage").count, "on the other page too")
    assert page.locator("#server-desk").is_visible(), "the last known state stays"
    assert page.locator("#mcp-live-status").inner_text() == "Stale", "and it does not say that it is live"
    assert one.locator(".mcp-tool").count() == 3
    for each in (calls, call):
        wait_on(each, each.locator("#mcp-outage").count, "on these too")
        assert each.locator("#mcp-outage").count() == 1
    assert calls.locator(".mcp-calls tbody tr").count() == 50
    assert (call.locator("h1").inner_text(), call.locator(".mcp-waterfall").count()) == (name, 1)
    for path in ("servers", "servers/desk", "calls", "calls/x", "alerts", "dead-letters"):
        status, answer = data(f"{flower.url}/mcp/api/{path}")
        assert (status, "Redis cannot be read" in answer["error"]) == (503, True), path
    for path in ("servers/shop", "calls", "calls/00000000-0000-4000-8000-000000000007"):
        with urlopen(f"{flower.url}/mcp/{path}", timeout=20) as answer:
            text = answer.read().decode()
        assert ("Redis cannot be read" in text, "list_pods" in text) == (True, path == "servers/shop")
        for claim in ("not been listed", "in the audit", "Unknown call", ">0 calls"):
            assert claim not in text, "nothing is claimed about data that was not read"

    valkey.start()
    write_health(valkey.client, FLEET)
    wait_on(page, lambda: page.locator("#mcp-outage").count() == 0, "the notice is gone")
    assert page.locator("#server-desk svg.mcp-strip rect.healthy").count() >= 1, "the last hour is still shown"
    wait_on(one, lambda: one.locator("#mcp-outage").count() == 0, "on the other page too")
    for each in (one, calls, call):
        each.close()


def test_no_request_waits_for_a_hanging_redis(flower: Flower, valkey: StoppableValkey, open_page: OpenPage) -> None:
    page = open_page(f"{flower.url}/mcp")
    with frozen(valkey.client.info("server")["process_id"]):
        wait_on(page, page.locator("#mcp-outage").count, "the notice")
        paths = ["servers", "servers/desk", "calls", "calls/x"]
        assert [data(f"{flower.url}/mcp/api/{path}")[0] for path in paths] == [503] * len(paths), "none waits for it"
        page.goto(f"{flower.url}/workers")
        page.get_by_text("Cluster overview").wait_for()


def test_without_workers_the_pages_say_so(flower: Flower, valkey: StoppableValkey, open_page: OpenPage) -> None:
    valkey.client.flushall()
    write_fleet(valkey.client, FLEET)
    valkey.client.delete(keys.HEALTH_WORKERS)
    page = open_page(f"{flower.url}/mcp")
    wait_on(page, page.locator("#mcp-no-worker", has_text="No worker is reporting").count, "the notice")
    assert page.locator("#server-desk").get_by_text("unknown", exact=True).is_visible()
    assert "is one running?" in page.locator("#server-desk").inner_text()
    write_health(valkey.client, FLEET)
    wait_on(page, lambda: page.locator("#mcp-no-worker").count() == 0, "workers report again")


def test_unreadable_data_of_a_server_hides_no_other_server(
    flower: Flower, valkey: StoppableValkey, open_page: OpenPage
) -> None:
    client = valkey.client
    client.flushall()
    fleet = [FleetServer(name, tools=2) for name in ("fine", "health", "minute", "failure", "metrics", "tools")]
    write_fleet(client, fleet)
    write_calls(client, fleet, 12)
    client.hset(keys.worker_health_key("worker@alpha"), "health", '{"v": 2}')
    client.hset(keys.minute_key(client.time()[0] // 60), mapping={"calls:newer minute": "1", "up minute": "many"})
    client.hset(keys.LAST_FAILURES, "failure", "{")
    client.expire(keys.LAST_FAILURES, 600)
    client.set(keys.metrics_key("metrics"), "no hash", ex=600)
    client.hset(keys.metrics_key("fine"), "calls:newer list_pods", 3)
    client.hset(keys.tools_key("tools"), "listing", '{"v": 99}')
    client.hset(keys.TOOL_REVISIONS, "tools", "1")
    client.xadd(keys.AUDIT, {keys.AUDIT_FIELD: "{"})
    client.xadd(keys.AUDIT, {keys.AUDIT_FIELD: AuditEntry(at=1e11, server="fine", tool="a", outcome="ok").encode()})
    page = open_page(f"{flower.url}/mcp?order=name")
    wait_on(page, page.locator("#server-fine").count, "the servers")

    def problem(server: str) -> str:
        return " ".join(page.locator(f"#server-{server} .mcp-problem").all_inner_texts())

    # What is shown first may have been read while this was written.
    wait_on(page, lambda: "its list of tools cannot be read" in problem("tools"), "the last damage is shown")
    assert problem("fine") == ""
    assert "the record of worker worker@alpha cannot be read" in problem("health")
    assert "2 metrics of the last hour cannot be read" in problem("minute")
    assert "its last failure cannot be read" in problem("failure")
    assert "its list of tools cannot be read" in problem("tools")
    for server in fleet:
        page.goto(f"{flower.url}/mcp/servers/{server.name}")
        page.locator("h1", has_text=server.name).wait_for()
    page.goto(f"{flower.url}/mcp/servers/metrics")
    page.get_by_text("its metrics cannot be read").wait_for()
    page.goto(f"{flower.url}/mcp/servers/fine")
    page.get_by_text("1 metrics of its tools cannot be read").wait_for()
    page.goto(f"{flower.url}/mcp/calls")
    page.get_by_text("this entry cannot be read").wait_for()
    assert page.locator(".mcp-calls tbody tr").count() == 14


def test_unreadable_shared_data_hides_nothing_else(
    flower: Flower, valkey: StoppableValkey, open_page: OpenPage
) -> None:
    client = valkey.client
    client.flushall()
    write_fleet(client, [FleetServer("alone", tools=2)])
    client.delete(keys.MEASURING_WORKERS)
    for key in (keys.MEASURING_WORKERS, keys.AUDIT):
        client.set(key, "of another type", ex=600)
    page = open_page(f"{flower.url}/mcp")
    wait_on(page, page.locator("#server-alone").count, "the server")
    wait_on(page, page.get_by_text("what is in flight cannot be read").count, "the notice")
    page.goto(f"{flower.url}/mcp/servers/alone")
    page.get_by_text("its latest calls cannot be read").wait_for()
    page.get_by_text("The calls could not be read").wait_for()
    assert page.locator(".mcp-tool").count() == 2
    status, server = data(f"{flower.url}/mcp/api/servers/alone")
    assert (status, len(server["tools"]), len(server["problems"])) == (200, 2, 3), "the running calls too"
    assert len(data(f"{flower.url}/mcp/api/servers")[1]["problems"]) == 1
    assert data(f"{flower.url}/mcp/api/calls")[0] == 503


def test_a_busy_server_hides_no_calls_of_others(flower: Flower, valkey: StoppableValkey, open_page: OpenPage) -> None:
    client = valkey.client
    client.flushall()
    quiet, busy = FleetServer("quiet", tools=1), FleetServer("busy", tools=1)
    write_fleet(client, [quiet, busy])
    write_calls(client, [quiet], 3, ago_s=3600)
    write_calls(client, [busy], KEPT + 100)
    page = open_page(f"{flower.url}/mcp")
    wait_on(page, page.locator("#server-quiet").count, "the servers")
    for path in ("/mcp/servers/quiet", "/mcp/calls?server=quiet"):
        page.goto(flower.url + path)
        assert page.locator(".mcp-calls tbody tr").count() == 3
    assert len(data(f"{flower.url}/mcp/api/servers/quiet")[1]["calls"]) == 3
    answer = data(f"{flower.url}/mcp/api/calls?server=quiet")[1]
    assert (len(answer["calls"]), answer["after"]) == (3, None)
    page.goto(f"{flower.url}/mcp/calls?server=nobody")
    page.get_by_text("No matching calls in the audit").wait_for()


def test_the_focus_stays_when_rows_change_places(flower: Flower, valkey: StoppableValkey, open_page: OpenPage) -> None:
    valkey.client.flushall()
    fleet = [FleetServer(name, tools=1) for name in ("alpha", "beta", "gamma")]
    fleet[2].reason = "gone"
    write_fleet(valkey.client, fleet)
    page = open_page(f"{flower.url}/mcp")
    wait_on(page, page.locator("#server-gamma .mcp-state.unhealthy").count, "it is unhealthy and first")
    page.locator("#server-beta a").first.focus()
    fleet[2].reason = None
    write_health(valkey.client, fleet)
    wait_on(page, page.locator("#server-gamma .mcp-state.healthy").count, "it is healthy and last")
    rows = [row.get_attribute("id") for row in page.locator("#mcp-server-rows tr").all()]
    assert rows.index("server-beta") < rows.index("server-gamma")
    assert page.evaluate("document.activeElement.closest('tr')?.id") == "server-beta"


def test_a_result_of_another_application_is_not_shown(
    flower: Flower, valkey: StoppableValkey, open_page: OpenPage
) -> None:
    stored = {
        "theirs": {"status": "SUCCESS", "result": {"secret": "of another application"}},
        "failed": {"status": "FAILURE", "result": {"exc_type": "KeyError", "exc_message": "password: hunter2-hunter2"}},
        "broken": None,
    }
    for task_id, meta in stored.items():
        valkey.client.set(keys.result_key(task_id), json.dumps(meta) if meta else "{", ex=600)
    page = open_page(f"{flower.url}/mcp/calls/theirs")
    page.get_by_text("is not the result of a tool call").wait_for()
    assert "of another application" not in page.content()
    page.goto(f"{flower.url}/mcp/calls/failed")
    page.get_by_text("FAILURE: KeyError").wait_for()
    assert "hunter2" not in page.content()
    page.goto(f"{flower.url}/mcp/calls/broken")
    page.get_by_text("is not the result of a tool call").wait_for()


def test_flower_that_lost_redis_ends(flower: Flower, valkey: StoppableValkey) -> None:
    before = flower.log.count("Failed to capture events")
    valkey.stop()
    # By now a thread tries to send a control command, and kombu's attempts have no end.
    wait_until(lambda: flower.log.count("Failed to capture events") > before + 2, "it has tried for a while")
    assert flower.stop() == 0

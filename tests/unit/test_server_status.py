"""The status of servers, as an agent reads it: from records that workers left, in one round trip."""

import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from tarsy_tasks import ServerState, ToolExecutor
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.errors import BrokerUnavailable, ToolNameError
from tarsy_tasks.models import ToolDefinition, ToolListing
from tarsy_tasks.telemetry.health_records import HealthRecord

pytestmark = pytest.mark.keeps_keys


class Reports:
    """Workers' reports in Redis."""

    def __init__(self, client: Any) -> None:
        self.client = client
        seconds, _ = client.time()
        self.now = float(seconds)

    def write(self, worker: str, server: str, **fields: Any) -> None:
        given = {"server": server, "worker": worker, "healthy": True, "checked_at": self.now, **fields}
        record = HealthRecord.model_validate(given)
        self.client.zadd("tarsy:health-workers", {worker: self.now})
        self.client.hset(f"tarsy:worker-health:{worker}", server, record.model_dump_json())

    def list_tools(self, server: str, *tools: str, **meta: Any) -> None:
        listed = tuple(ToolDefinition(name=f"{server}.{tool}", server=server, tool=tool, **meta) for tool in tools)
        listing = ToolListing(server=server, tools=listed, instructions="Look first.").model_dump(mode="json")
        text = json.dumps({**listing, "listed_at": self.now, "worker": "w0"})
        self.client.hset(f"tarsy:tools:{server}", "listing", text)


@pytest.fixture
def reports(client: Any) -> Reports:
    return Reports(client)


def test_reports_of_several_workers_are_one_status(reports: Reports, app: TarsyApp) -> None:
    counted = {"in_flight": 2, "recent_calls": 5, "failed_calls": 1, "sessions_opened": 3, "sessions_replaced": 1}
    since = reports.now - 60
    reports.write("w0", "desk", state="connected", connected_since=since, capabilities=("tools",), **counted)
    reports.write("w1", "desk", state="error", healthy=False, error="It exits.", last_error="It exits.", **counted)
    reports.list_tools("desk", "order", "pay")
    with ToolExecutor(["desk"], app=app) as tools:
        found = tools.server("desk")
    assert (found.state, found.connected_since, found.capabilities) == (ServerState.CONNECTED, since, ("tools",))
    assert (found.last_error, found.instructions, found.listed_at) == ("It exits.", "Look first.", reports.now)
    assert [tool.name for tool in found.tools] == ["desk.order", "desk.pay"]
    assert found.health.status == "degraded"
    assert found.counters.model_dump() == {"workers": 2, **{name: 2 * number for name, number in counted.items()}}


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (["idle", "connected"], "connected"),
        (["error", "connecting"], "connecting"),
        (["error", "idle"], "idle"),
        (["disconnected", "error"], "error"),
        (["something newer"], "unknown"),
        ([None], "unknown"),
        ([], "unknown"),
    ],
)
def test_the_state_is_the_best_of_all_workers(reports: Reports, app: TarsyApp, states: list[Any], state: str) -> None:
    for number, each in enumerate(states):
        reports.write(f"w{number}", "desk", state=each)
    reports.write("gone", "desk", state="connected", checked_at=reports.now - 100)
    with ToolExecutor(["desk"], app=app) as tools:
        assert tools.server("desk").state == state


def test_a_status_takes_one_round_trip(reports: Reports, app: TarsyApp, client: Any) -> None:
    servers = [f"s{number}" for number in range(100)]
    for server in servers:
        reports.write("w0", server, state="idle", is_idle=True)
        reports.list_tools(server, "look")
    with ToolExecutor(servers, app=app) as tools:
        tools.server("s0")  # connects
        client.config_resetstat()
        found = tools.servers()
        one = tools.server("s1")
        info = tools.tool_info("s2__look")
        stats = client.info("commandstats")
    assert list(found) == servers
    assert found["s1"].tools == one.tools
    assert one.state is ServerState.IDLE
    assert info.tool.name == "s2.look"
    assert stats["cmdstat_eval_ro"]["calls"] == 3
    inside = {"cmdstat_time", "cmdstat_zrange", "cmdstat_get", "cmdstat_hget"}
    own = {"cmdstat_config|resetstat", "cmdstat_info", "cmdstat_eval_ro"}
    assert not stats.keys() - inside - own


def test_only_selected_tools_of_models_are_shown(reports: Reports, app: TarsyApp) -> None:
    reports.list_tools("desk", "order", "pay")
    reports.list_tools("app", "draw", meta={"ui": {"visibility": ["app"]}})
    with ToolExecutor(["desk", "app"], tool_filter={"desk": ["pay"]}, app=app) as tools:
        assert [tool.tool for tool in tools.server("desk").tools] == ["pay"]
        assert not tools.server("app").tools
        assert not tools.is_mcp_tool("desk.order")
        assert tools.is_mcp_tool("desk.pay")


def test_names_in_every_form_mean_a_tool(reports: Reports, app: TarsyApp) -> None:
    reports.list_tools("desk", "order_item")
    with ToolExecutor(["desk", "never-listed"], app=app) as tools:
        for name in ("desk.order_item", "desk__order_item", "mcp_desk_order_item", "desk:order_item"):
            assert tools.is_mcp_tool(name), name
            assert tools.tool_info(name).tool.name == "desk.order_item"
            assert tools.tool_info(name).permission
        for name in ("order_item", "desk.order", "shop.order_item", "print", "", "never-listed.look"):
            assert not tools.is_mcp_tool(name), name
        with pytest.raises(ToolNameError, match="order_item"):
            tools.tool_info("desk.order_itm")
        with pytest.raises(ToolNameError, match="desk, never-listed"):
            tools.server("shop")


def test_what_cannot_be_read_is_left_out_and_named(reports: Reports, app: TarsyApp, client: Any) -> None:
    reports.write("w0", "desk", state="connected")
    client.hset("tarsy:worker-health:w1", "desk", "{")
    client.zadd("tarsy:health-workers", {"w1": reports.now, "w2": reports.now})
    client.set("tarsy:worker-health:w2", "a string")
    client.set("tarsy:tools:desk", "a string")
    with ToolExecutor(["desk"], app=app) as tools:
        found = tools.server("desk")
    assert (found.state, found.tools, found.listed_at) == (ServerState.CONNECTED, (), None)
    assert found.health.skipped == ("the record of worker w1 cannot be read: it is damaged, or of another version",)


def test_a_user_with_older_rules_is_refused_with_the_remedy(reports: Reports, client: Any, redis_url: str) -> None:
    rights = {"keys": ["*"], "channels": ["*"], "commands": ["+@all", "-eval_ro"]}
    client.acl_setuser("older", enabled=True, passwords=["+older"], **rights)
    url = redis_url.replace(f"//{urlsplit(redis_url).username}:{urlsplit(redis_url).password}@", "//older:older@")
    with build_app({"broker_url": url, "result_backend": url}) as app, ToolExecutor(["desk"], app=app) as tools:  # noqa: SIM117
        with pytest.raises(BrokerUnavailable, match="tarsy-tasks acl"):
            tools.server("desk")
    client.acl_deluser("older")
    client.acl_log_reset()

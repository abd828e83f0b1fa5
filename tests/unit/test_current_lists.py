"""`list_tools` from the catalogue: which lists count as current, and for which servers a worker is asked."""

from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from tarsy_tasks import ToolDefinition, ToolExecutor, ToolList
from tarsy_tasks.broker import keys
from tarsy_tasks.catalogue import digest_listing
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.models import ToolListing
from tarsy_tasks.telemetry.health_records import RECORD_TTL_S, HealthRecord
from tarsy_tasks.worker.reporting.tool_changes import record_listing

pytestmark = pytest.mark.keeps_keys

NOT_ASKED = {"cmdstat_eval_ro", "cmdstat_time", "cmdstat_zrange", "cmdstat_llen", "cmdstat_hget"}


class Workers:
    """What workers have written to Redis; none of them runs, so a server whose worker is asked fails."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.now = float(client.time()[0])

    def serve(self, server: str, *tools: str, worker: str = "w0", **meta: Any) -> ToolListing:
        """A worker serves a server, and its session knows these tools."""
        definitions = tuple(ToolDefinition(name=f"{server}.{tool}", server=server, tool=tool, **meta) for tool in tools)
        listing = ToolListing(server=server, tools=definitions, instructions=f"Use {server}.")
        self.client.zadd(keys.serving_key(server), {f"{worker}#1": self.now})
        record_listing(self.client, listing, worker=worker)
        self.report(server, worker, tools_digest=digest_listing(listing))
        return listing

    def report(self, server: str, worker: str = "w0", **fields: Any) -> None:
        record = HealthRecord.model_validate(
            {"server": server, "worker": worker, "healthy": True, "checked_at": self.now, "lists_to_all": True} | fields
        )
        self.client.zadd(keys.HEALTH_WORKERS, {worker: self.now})
        self.client.hset(keys.worker_health_key(worker), server, record.model_dump_json())


@pytest.fixture
def workers(client: Any) -> Workers:
    return Workers(client)


def list_tools(app: TarsyApp, *servers: str, **more: Any) -> ToolList:
    with ToolExecutor(servers, app=app, timeout_s=1, **more) as tools:
        return tools.list_tools()


def test_a_hundred_servers_are_one_command(workers: Workers, app: TarsyApp, client: Any) -> None:
    servers = [f"s{number}" for number in range(100)]
    for server in servers:
        workers.serve(server, "look", "act")
    with ToolExecutor(servers, app=app) as tools:
        first = tools.list_tools()
        client.config_resetstat()
        second = tools.list_tools()
        stats = client.info("commandstats")
    assert [tool.name for tool in first] == [f"{server}.{tool}" for server in servers for tool in ("look", "act")]
    assert not first.failed_servers
    assert first.instructions["s1"] == "Use s1."
    assert second == first
    assert second[0] is first[0], "what is known is not parsed again"
    assert stats["cmdstat_eval_ro"]["calls"] == 1
    assert stats["cmdstat_hget"]["calls"] == 100, "no list is read again"
    assert not stats.keys() - NOT_ASKED - {"cmdstat_config|resetstat", "cmdstat_info"}


def test_the_next_list_has_what_has_changed(workers: Workers, app: TarsyApp) -> None:
    workers.serve("desk", "look")
    workers.serve("shop", "pay")
    assert [tool.name for tool in list_tools(app, "desk", "shop")] == ["desk.look", "shop.pay"]
    workers.serve("desk", "look", "act", description="is new")
    listed = list_tools(app, "desk", "shop")
    assert [(tool.name, tool.description) for tool in listed] == [
        ("desk.look", "is new"),
        ("desk.act", "is new"),
        ("shop.pay", ""),
    ]


def test_only_selected_tools_of_models_are_listed(workers: Workers, app: TarsyApp) -> None:
    workers.serve("desk", "look", "act")
    workers.serve("app", "draw", meta={"ui": {"visibility": ["app"]}})
    listed = list_tools(app, "desk", "app", tool_filter={"desk": ["act", "gone"]})
    assert [tool.name for tool in listed] == ["desk.act"]
    assert listed.failed_servers == {"desk": "it has no tool gone"}


STALE: dict[str, dict[str, Any]] = {
    "another list": {"tools_digest": "0" * 32},
    "no list": {"tools_digest": None},
    "a policy": {"lists_to_all": False},
    "an old report": {"checked_at": 1.0},
}


@pytest.mark.parametrize("reported", STALE.values(), ids=STALE.keys())
@pytest.mark.parametrize("is_known", [False, True])
def test_a_worker_is_asked_that_reports(
    workers: Workers, app: TarsyApp, reported: dict[str, Any], is_known: bool
) -> None:
    listing = workers.serve("desk", "look")
    if is_known:
        assert not list_tools(app, "desk").failed_servers
    workers.report("desk", **{"tools_digest": digest_listing(listing)} | reported)
    assert "no worker answered" in list_tools(app, "desk").failed_servers["desk"]


def test_a_worker_is_asked_if_one_of_several_knows_another_list(workers: Workers, app: TarsyApp) -> None:
    workers.serve("desk", "look")
    listing = workers.serve("desk", "look", "act", worker="w1")
    assert "desk" in list_tools(app, "desk").failed_servers
    workers.report("desk", tools_digest=digest_listing(listing))
    assert len(list_tools(app, "desk")) == 2
    workers.report("desk", tools_digest="0" * 32, checked_at=workers.now - 2 * RECORD_TTL_S)
    assert len(list_tools(app, "desk")) == 2, "the report of a worker that is gone does not count"


def test_workers_of_an_earlier_version_are_asked(workers: Workers, app: TarsyApp, client: Any) -> None:
    listing = workers.serve("desk", "look")
    client.hset(keys.tools_key("desk"), "listing", listing.model_dump_json())
    assert "desk" in list_tools(app, "desk").failed_servers
    workers.serve("desk", "look")  # a new one writes what is missing
    assert not list_tools(app, "desk").failed_servers
    record = HealthRecord(server="desk", worker="w0", healthy=True, checked_at=workers.now)
    text = record.model_dump_json(exclude={"tools_digest", "lists_to_all"})
    client.hset(keys.worker_health_key("w0"), "desk", text)
    assert "desk" in list_tools(app, "desk").failed_servers


SPOILT = [keys.tools_key("desk"), keys.serving_key("desk"), keys.worker_health_key("w0"), keys.HEALTH_WORKERS]


@pytest.mark.parametrize("key", SPOILT)
@pytest.mark.parametrize("value", [None, "a string"])
def test_a_worker_is_asked_where_something_is_missing(
    workers: Workers, app: TarsyApp, client: Any, key: str, value: str | None
) -> None:
    workers.serve("desk", "look")
    client.delete(key)
    if value is not None:
        client.set(key, value)
    assert "desk" in list_tools(app, "desk").failed_servers


def test_a_worker_is_asked_where_something_cannot_be_read(workers: Workers, app: TarsyApp, client: Any) -> None:
    workers.serve("desk", "look")
    text = client.hget(keys.tools_key("desk"), "listing")
    for damaged in (b"{", text.replace(b'"desk"', b'"shop"')):
        client.hset(keys.tools_key("desk"), "listing", damaged)
        assert "desk" in list_tools(app, "desk").failed_servers
    client.hset(keys.tools_key("desk"), "listing", text)
    assert len(list_tools(app, "desk")) == 1
    client.hset(keys.worker_health_key("w1"), "desk", "{")
    client.zadd(keys.HEALTH_WORKERS, {"w1": workers.now})
    assert "desk" in list_tools(app, "desk").failed_servers


def test_a_server_whose_only_worker_is_dead_is_not_listed(workers: Workers, app: TarsyApp, client: Any) -> None:
    workers.serve("desk", "look")
    client.zadd(keys.serving_key("desk"), {"w0#1": workers.now - 60})
    assert "no worker answered" in list_tools(app, "desk").failed_servers["desk"]


RIGHTS = {"queue": ["-llen", "(+llen ~mcp.shop*)"], "scripts": ["-eval_ro"]}


@pytest.mark.parametrize("denied", RIGHTS)
def test_what_a_user_may_not_call_or_read_is_asked_for(
    workers: Workers, client: Any, redis_url: str, denied: str
) -> None:
    workers.serve("desk", "look")
    workers.serve("shop", "pay")
    client.execute_command("ACL", "SETUSER", "limited", "on", ">limited", "~*", "&*", "+@all", *RIGHTS[denied])
    parts = urlsplit(redis_url)
    url = parts._replace(netloc=f"limited:limited@{parts.hostname}:{parts.port}").geturl()
    with closing(build_app({"broker_url": url, "result_backend": url})) as app:
        listed = list_tools(app, "desk", "shop")
    assert set(listed.failed_servers) == ({"desk"} if denied == "queue" else {"desk", "shop"})
    # Not deleted: this process keeps a connection of its agents, and would be denied to open it again.
    client.execute_command("ACL", "SETUSER", "limited", "+@all")
    client.acl_log_reset()


def test_two_databases_are_asked_as_before(workers: Workers, client: Any, redis_url: str) -> None:
    workers.serve("desk", "look")
    other = redis_url.rpartition("/")[0] + "/9"
    with closing(build_app({"broker_url": other, "result_backend": redis_url})) as app:
        assert "desk" in list_tools(app, "desk").failed_servers


def test_the_order_of_tools_is_not_another_list() -> None:
    def listing(*tools: str, **more: Any) -> ToolListing:
        found = tuple(ToolDefinition(name=f"desk.{tool}", server="desk", tool=tool) for tool in tools)
        return ToolListing(server="desk", tools=found, **more)

    assert digest_listing(listing("a", "b")) == digest_listing(listing("b", "a"))
    others = [
        listing("a", "b"),
        listing("a"),
        listing("a", "c"),
        listing("a", "b", instructions="Look first."),
        listing("a", "b", left_out={"c d": "its name is not valid"}),
    ]
    assert len({digest_listing(each) for each in others}) == 5

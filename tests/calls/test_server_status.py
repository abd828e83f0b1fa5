"""`server`, `tool_info` and `is_mcp_tool` with a worker and its servers."""

import asyncio
from collections.abc import Iterator

import pytest
import redis

from tarsy_tasks import AsyncToolExecutor, Outcome, ServerState, ServerStatus, ToolExecutor
from tarsy_tasks.broker import keys
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    directory = tmp_path_factory.mktemp("ledgers")
    servers = {
        "desk": witness(Ledger(directory / "desk")),
        "broken": {"command": "no-such-program-here"},
        "later": witness(Ledger(directory / "later"), start="on_demand", idle_stop_s=1),
    }
    return start_worker(servers)


@pytest.fixture
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=30) as tools:
        yield tools


def _listed(status: ServerStatus, state: ServerState) -> ServerStatus | None:
    """A status in that state with all that is known then; a worker writes the tools a moment after the state."""
    return status if status.state is state and status.tools and status.capabilities else None


def test_a_connected_server_says_all_about_itself(tools: ToolExecutor, redis_url: str) -> None:
    before = wait_until(lambda: _listed(tools.server("desk"), ServerState.CONNECTED), "it is connected")
    assert before.capabilities[:1] == ("tools",)
    assert before.counters.sessions_opened == before.counters.workers == 1
    assert before.last_error is None
    with ToolExecutor(["desk"], timeout_s=30) as only_desk:
        assert list(before.tools) == list(only_desk.list_tools())
    with redis.Redis.from_url(redis_url) as client:
        assert before.connected_since is not None
        assert 0 <= client.time()[0] + 1 - before.connected_since < 300
    assert tools.execute("desk.look", {"key": "a"}).outcome is Outcome.OK
    assert tools.is_mcp_tool("desk.look")
    assert tools.tool_info("desk.look").tool.annotations == {"readOnlyHint": True}


def test_a_tool_is_known_before_it_is_written_to_redis(worker: Worker, redis_url: str) -> None:
    with ToolExecutor(["desk"], timeout_s=30) as tools, redis.Redis.from_url(redis_url) as client:
        wait_until(lambda: tools.server("desk").tools, "its worker has written it")
        listed = tools.list_tools()
        client.rename(keys.tools_key("desk"), "not written yet")
        try:
            assert tools.tool_info("desk.look").tool in listed
        finally:
            client.rename("not written yet", keys.tools_key("desk"))


def test_a_server_that_does_not_start_says_why(tools: ToolExecutor) -> None:
    wait_until(lambda: tools.server("broken").state is ServerState.ERROR, "it failed")
    found = tools.server("broken")
    assert "no-such-program-here" in (found.last_error or "")
    assert (found.connected_since, found.capabilities, found.tools) == (None, (), ())
    assert found.health.status == "unhealthy"


def test_an_idle_server_is_known_by_what_it_was(tools: ToolExecutor) -> None:
    wait_until(lambda: tools.server("later").state is ServerState.IDLE, "it is idle")
    assert tools.server("later").capabilities == ()
    assert tools.execute("later.look", {"key": "a"}).outcome is Outcome.OK

    # What is known of it may be from before the call.
    idle = wait_until(lambda: _listed(tools.server("later"), ServerState.IDLE), "it is idle again")
    assert idle.capabilities[:1] == ("tools",)
    assert len(idle.tools) == 6
    assert idle.counters.sessions_replaced == 0


async def _ask() -> None:
    async with AsyncToolExecutor(timeout_s=30) as tools:
        servers = await tools.servers()
        assert set(servers) == {"desk", "broken", "later"}
        assert (await tools.server("desk")).state is ServerState.CONNECTED
        assert await tools.is_mcp_tool("desk__look")
        assert not await tools.is_mcp_tool("desk.lok")
        assert (await tools.tool_info("desk.add")).server.server == "desk"


def test_asyncio_agents_ask_the_same(tools: ToolExecutor) -> None:
    wait_until(lambda: tools.server("desk").tools, "it is listed")
    asyncio.run(_ask())

"""A server that keeps costing the worker too much is slowed, then suspended for a while, and comes back by itself."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.sessions.connection import ServerConnection, State, build_connections
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.time_budget import Suspension, TimeBudget
from tests.processes import turns
from tests.servers import misbehaving_stdio

FIRST_S = 1.0
WHY = "sends more than a worker can read beside its other work"


def over_budget() -> TimeBudget:
    budget = TimeBudget(share=0.5, capacity_s=1.0, most_debt_s=10.0)
    budget.charge(100.0)
    assert 0 < budget.pause_s() <= 10.0 / 0.5
    return budget


def test_a_suspension_is_longer_each_time() -> None:
    suspension = Suspension(slow_s=0.0, first_s=100.0)
    began: list[float] = []
    suspension.on_begin = lambda: began.append(round(suspension.left_s))
    for _ in range(5):
        suspension.note_excess(over_budget(), "is too busy")
        suspension.note_excess(over_budget(), "is suspended already")
        suspension.lift()
        assert suspension.left_s == 0
    assert (began, suspension.count) == ([100, 200, 400, 600, 600], 5)
    assert suspension.reason == "is too busy"


def test_a_short_excess_only_slows() -> None:
    suspension = Suspension(slow_s=1000.0)
    suspension.note_excess(over_budget(), "is too busy")
    assert suspension.left_s == suspension.count == 0


def test_a_budget_that_fills_up_again_forgets() -> None:
    budget = TimeBudget(share=1e9, capacity_s=1.0, most_debt_s=10.0)
    budget.charge(5.0)
    assert budget.pause_s() == 0
    assert (budget.left_s, budget.slow_since) == (1.0, None)


def test_long_work_that_nobody_asked_for_suspends_a_server() -> None:
    def compute() -> None:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass

    async def main() -> list[int]:
        suspension = Suspension(slow_s=0.0)
        work = LongWork(suspension, TimeBudget(share=1e-4, capacity_s=0.01, most_debt_s=1e-4))
        counts: list[int] = []
        for allowed_s in (1.0, 1.0, 0.0, 0.0):
            await work.run(compute, allowed_s=allowed_s)
            counts.append(suspension.count)
        return counts

    assert asyncio.run(main()) == [0, 0, 0, 1]


def with_flooding_server(act: Callable[[ServerConnection], Awaitable[None]]) -> None:
    """Do something with a server that floods the worker from its first call on."""

    async def main() -> None:
        arguments = {"command": sys.executable, "args": [misbehaving_stdio.__file__, "floods-notifications"]}
        config = ServerConfig.model_validate({"name": "s", **arguments})
        context = SessionContext(new_suspension=partial(Suspension, slow_s=0.0, first_s=FIRST_S))
        connection = build_connections([config], context)["s"]
        async with asyncio.timeout(60):
            session = await connection.connected()
            await session.call_tool("act", {}, timeout_s=10)
            try:
                await act(connection)
            finally:
                await connection.close()
                context.child_watch.close()

    asyncio.run(main())


async def until_suspended(connection: ServerConnection) -> None:
    async for _ in turns():
        if connection.suspension.count:
            return


def test_calls_of_a_suspended_server_end_at_once() -> None:
    changes: list[State] = []

    async def act(connection: ServerConnection) -> None:
        connection.on_change = lambda: changes.append(connection.state)
        await until_suspended(connection)
        refused = [connection.session_for_call(10), connection.check(5, 5), connection.connected()]
        for each in refused:
            with pytest.raises(NoSessionError) as found:
                await each
            assert found.value.code is ErrorCode.SERVER_UNAVAILABLE
            assert f"MCP server `s` is suspended for 1 s: it {WHY}" in found.value.text
            assert "The tool did not run. Try again later" in found.value.text
        # What health records, dashboard and `inspect mcp_sessions` show.
        assert changes == [State.ERROR]
        assert connection.error is not None
        assert "control mcp_reconnect s` ends that at once" in connection.error.operator_text
        async for _ in turns():
            if not connection.suspension.left_s:
                break
        session = await connection.session_for_call(10)
        result = await session.call_tool("echo", {"text": "here"}, timeout_s=10)
        assert result.content[0].model_dump()["text"] == "here"
        assert connection.error is None

    with_flooding_server(act)
    assert changes[-1] is State.CONNECTED


def test_an_operator_ends_a_suspension() -> None:
    async def act(connection: ServerConnection) -> None:
        await until_suspended(connection)
        await connection.reconnect()
        assert connection.state is State.CONNECTED

    with_flooding_server(act)


def test_all_sessions_of_a_server_share_its_long_work() -> None:
    """While other long work of the server has all its turns, no session of it reads a large answer."""
    large = {"text": "x" * 20_000}
    may_end = threading.Event()

    async def main() -> None:
        server = {"command": sys.executable, "args": [misbehaving_stdio.__file__, "server"]}
        configs = [ServerConfig.model_validate({"name": name, **server, "session": "per_call"}) for name in ("a", "b")]
        context = SessionContext()
        busy, idle = build_connections(configs, context).values()
        async with asyncio.timeout(60):
            sessions = [await each.session_for_call(30) for each in (busy, busy, idle)]
            waiting = [asyncio.create_task(busy.long_work.run(may_end.wait)) for _ in range(os.cpu_count() or 1)]
            reading = [asyncio.create_task(each.call_tool("echo", large, timeout_s=30)) for each in sessions]
            if len(waiting) > 1:  # or there is one thread for all
                await reading.pop()
            assert not any(each.done() for each in reading)
            may_end.set()
            await asyncio.gather(*waiting, *reading)
            for connection in (busy, idle):
                await connection.close()
            context.child_watch.close()

    asyncio.run(main())

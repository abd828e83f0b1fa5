"""A server that keeps costing the worker too much is slowed, then suspended for a while, and comes back by itself."""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from math import inf

import pytest

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.long_work import LongWork, charged_in_full
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connection_state import State
from tarsy_tasks.worker.sessions.connections import build_connections
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session_check import check_connection
from tarsy_tasks.worker.time_budget import Suspension, TimeBudget
from tests.processes import until
from tests.servers import misbehaving_stdio

FIRST_S = 1.0
WHY = "sends more than a worker can read alongside its work"


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Excess:
    """A server that costs all the time that passes, and its suspension."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.suspension = Suspension(slow_s=30.0, first_s=100.0, clock=self.clock)
        self.budget = self.suspension.new_budget(share=0.25, capacity_s=2.0, most_debt_s=5.0)
        self.began: list[float] = []
        self.suspension.on_begin = lambda: self.began.append(self.suspension.left_s)

    def last(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.now += 1.0
            self.budget.charge(1.0)
            if self.budget.left_s < 0 and self.budget.pause_s():
                self.suspension.note_excess(self.budget, "it is too busy")

    @property
    def pauses(self) -> bool:
        return self.budget.left_s < 0 and self.budget.pause_s() > 0


def test_a_suspension_is_longer_each_time() -> None:
    excess = Excess()
    for number in range(1, 6):
        while excess.suspension.count < number:
            excess.last(1)
        excess.clock.now = excess.suspension.until
        assert excess.suspension.left_s == 0
    assert excess.began == [100, 200, 400, 600, 600]
    assert excess.suspension.reason == "it is too busy"


def test_a_short_excess_only_slows() -> None:
    excess = Excess()
    excess.last(30)
    assert excess.pauses
    assert excess.suspension.count == 0


def test_what_a_suspended_server_costs_does_not_suspend_it_again() -> None:
    excess = Excess()
    excess.last(120)  # its last calls are still being answered
    assert excess.began == [100]
    assert excess.pauses
    excess.clock.now = excess.suspension.until
    assert not excess.pauses
    excess.budget.charge(1.0)
    assert not excess.pauses
    excess.last(20)
    assert excess.began == [100]


def test_an_operator_gives_a_server_its_whole_budget_again() -> None:
    excess = Excess()
    for _ in range(2):
        excess.last(60)
        assert excess.suspension.left_s
        excess.suspension.lift()
        assert not excess.suspension.left_s
        assert not excess.pauses
    assert excess.began == [100, 100]


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
        work = LongWork(suspension, share=1e-4, capacity_s=0.01, most_debt_s=1e-4)
        counts: list[int] = []
        for allowed_s in (1.0, 1.0, 0.0, 0.0):
            await work.run(compute, allowed_s=allowed_s)
            counts.append(suspension.count)
        return counts

    assert asyncio.run(main()) == [0, 0, 0, 1]


def test_what_a_server_causes_is_charged_in_full_and_waits() -> None:
    async def main() -> list[bool]:
        work = LongWork(share=1e-4, capacity_s=0.0, most_debt_s=1.0)
        waits: list[bool] = []
        for is_caused in (False, True):
            with charged_in_full() if is_caused else nullcontext():
                await work.run(sum, range(100_000), allowed_s=inf)  # which does not wait itself
            pause = asyncio.ensure_future(work.pause())
            await asyncio.sleep(0)
            waits.append(not pause.done())
            pause.cancel()
        return waits

    assert asyncio.run(main()) == [False, True]


def with_flooding_server(
    act: Callable[[ServerConnection], Awaitable[None]], kind: str = "floods-notifications"
) -> None:
    """Do something with a server that floods the worker from its first call on."""

    async def main() -> None:
        arguments = {"command": sys.executable, "args": [misbehaving_stdio.__file__, kind]}
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
    await until(lambda: connection.suspension.count)


def test_calls_of_a_suspended_server_end_at_once() -> None:
    changes: list[State] = []

    async def act(connection: ServerConnection) -> None:
        connection.on_change = lambda: changes.append(connection.state)
        await until_suspended(connection)
        refused = [connection.session_for_call(10), check_connection(connection, 5, 5), connection.connected()]
        for each in refused:
            with pytest.raises(NoSessionError) as found:
                await each
            assert found.value.code is ErrorCode.SERVER_UNAVAILABLE
            assert f"MCP server `s` is suspended for 1 s: it {WHY}: " in found.value.text
            assert "The tool did not run. Try again later" in found.value.text
        # What health records, dashboard and `inspect mcp_sessions` show.
        assert changes == [State.ERROR]
        assert connection.error is not None
        assert "control mcp_reconnect s` ends that at once" in connection.error.operator_text
        await until(lambda: not connection.suspension.left_s)
        session = await connection.session_for_call(10)
        result = await session.call_tool("echo", {"text": "here"}, timeout_s=10)
        assert result.content[0].model_dump()["text"] == "here"
        assert connection.error is None

    with_flooding_server(act)
    assert changes[-1] is State.CONNECTED


def test_a_server_is_not_suspended_for_its_stderr(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tarsy_tasks.server.s")

    async def act(connection: ServerConnection) -> None:
        session = await connection.session_for_call(10)
        while sum("more lines were not logged" in message for message in caplog.messages) < 4:  # once a second
            result = await session.call_tool("echo", {"text": "here"}, timeout_s=10)
            assert result.content[0].model_dump()["text"] == "here"
        assert connection.suspension.count == 0

    with_flooding_server(act, "floods-stderr-beside-its-answers")


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

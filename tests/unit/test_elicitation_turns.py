"""Calls that may be asked one at a time: each gets its turn, in order, and a cancelled one keeps nobody from it."""

import asyncio
from collections.abc import Awaitable, Callable

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.worker.sessions.connections import build_connections
from tarsy_tasks.worker.sessions.elicitation_connection import ElicitationConnection
from tarsy_tasks.worker.sessions.opening import SessionContext
from tests.processes import until


def on_a_connection(act: Callable[[ElicitationConnection], Awaitable[None]]) -> None:
    async def main() -> None:
        context = SessionContext()
        shared = build_connections([ServerConfig(name="old", command="server")], context)["old"]
        elicitation = ElicitationConnection(shared, context)
        elicitation.takes_turns = True
        async with asyncio.timeout(60):
            await act(elicitation)

    asyncio.run(main())


def test_they_wait_in_line() -> None:
    async def act(elicitation: ElicitationConnection) -> None:
        order: list[int] = []

        async def use(number: int) -> None:
            await elicitation.enter()
            order.append(number)
            await until(lambda: len(order) + elicitation.waiting == 5)
            assert elicitation.users == 1
            elicitation.leave()

        await asyncio.gather(*(use(number) for number in range(5)))
        assert order == [0, 1, 2, 3, 4]
        assert (elicitation.users, elicitation.waiting, elicitation.is_free) == (0, 0, True)

    on_a_connection(act)


def test_a_cancelled_call_leaves_the_line() -> None:
    async def act(elicitation: ElicitationConnection) -> None:
        await elicitation.enter()
        waiting = [asyncio.ensure_future(elicitation.enter()) for _ in range(3)]
        await until(lambda: elicitation.waiting == 3)
        waiting[0].cancel()
        await until(lambda: elicitation.waiting == 2)
        elicitation.leave()
        waiting[1].cancel()  # it has its turn, and does not know it yet
        await waiting[2]
        assert (elicitation.users, elicitation.waiting) == (1, 0)
        elicitation.leave()
        assert elicitation.is_free

    on_a_connection(act)


def test_one_that_is_cancelled_at_the_last_moment_is_passed_over() -> None:
    async def act(elicitation: ElicitationConnection) -> None:
        await elicitation.enter()
        waiting = [asyncio.ensure_future(elicitation.enter()) for _ in range(2)]
        await until(lambda: elicitation.waiting == 2)
        waiting[0].cancel()  # and it is still in line
        elicitation.leave()
        await waiting[1]
        assert waiting[0].cancelled()
        assert (elicitation.users, elicitation.waiting) == (1, 0)

    on_a_connection(act)


def test_several_use_it_while_nothing_was_asked() -> None:
    async def act(elicitation: ElicitationConnection) -> None:
        elicitation.takes_turns = False
        for _ in range(2):
            await elicitation.enter()
        elicitation.takes_turns = True
        waiting = asyncio.ensure_future(elicitation.enter())
        await until(lambda: elicitation.waiting == 1)
        elicitation.leave()
        assert elicitation.waiting == 1, "another one still runs, and may be asked"
        elicitation.leave()
        await waiting

    on_a_connection(act)

"""Calls that may be asked one at a time: each gets its turn, in order, and a cancelled one keeps nobody from it."""

import asyncio
from collections.abc import Awaitable, Callable

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.worker.sessions.asking import AskingConnection
from tarsy_tasks.worker.sessions.connections import build_connections
from tarsy_tasks.worker.sessions.opening import SessionContext
from tests.processes import turns


def on_a_connection(act: Callable[[AskingConnection], Awaitable[None]]) -> None:
    async def main() -> None:
        context = SessionContext()
        shared = build_connections([ServerConfig(name="old", command="server")], context)["old"]
        asking = AskingConnection(shared, context)
        asking.takes_turns = True
        async with asyncio.timeout(10):
            await act(asking)

    asyncio.run(main())


async def until(found: Callable[[], object]) -> None:
    """`on_a_connection` limits how long."""
    async for _ in turns():
        if found():
            return


def test_they_wait_in_line() -> None:
    async def act(asking: AskingConnection) -> None:
        order: list[int] = []

        async def use(number: int) -> None:
            await asking.enter()
            order.append(number)
            await until(lambda: len(order) + asking.waiting == 5)
            assert asking.users == 1
            asking.leave()

        await asyncio.gather(*(use(number) for number in range(5)))
        assert order == [0, 1, 2, 3, 4]
        assert (asking.users, asking.waiting, asking.is_free) == (0, 0, True)

    on_a_connection(act)


def test_a_cancelled_call_leaves_the_line() -> None:
    async def act(asking: AskingConnection) -> None:
        await asking.enter()
        waiting = [asyncio.ensure_future(asking.enter()) for _ in range(3)]
        await until(lambda: asking.waiting == 3)
        waiting[0].cancel()
        await until(lambda: asking.waiting == 2)
        asking.leave()
        waiting[1].cancel()  # it has its turn, and does not know it yet
        await waiting[2]
        assert (asking.users, asking.waiting) == (1, 0)
        asking.leave()
        assert asking.is_free

    on_a_connection(act)


def test_one_that_is_cancelled_at_the_last_moment_is_passed_over() -> None:
    async def act(asking: AskingConnection) -> None:
        await asking.enter()
        waiting = [asyncio.ensure_future(asking.enter()) for _ in range(2)]
        await until(lambda: asking.waiting == 2)
        waiting[0].cancel()  # and it is still in line
        asking.leave()
        await waiting[1]
        assert waiting[0].cancelled()
        assert (asking.users, asking.waiting) == (1, 0)

    on_a_connection(act)


def test_several_use_it_while_nothing_was_asked() -> None:
    async def act(asking: AskingConnection) -> None:
        asking.takes_turns = False
        for _ in range(2):
            await asking.enter()
        asking.takes_turns = True
        waiting = asyncio.ensure_future(asking.enter())
        await until(lambda: asking.waiting == 1)
        asking.leave()
        assert asking.waiting == 1, "another one still runs, and may be asked"
        asking.leave()
        await waiting

    on_a_connection(act)

"""The event loop of calls: what it leaves out, and what it must not."""

import asyncio
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tarsy_tasks.event_loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


def test_input_is_read_while_callbacks_never_end(loop: EventLoop) -> None:
    here, there = socket.socketpair()
    here.setblocking(False)

    async def read() -> bytes:
        busy = True

        def go_on() -> None:
            if busy:
                loop.call_soon(go_on)

        go_on()
        there.send(b"input")
        try:
            return await asyncio.wait_for(loop.sock_recv(here, 10), 20)
        finally:
            busy = False

    with here, there:
        assert loop.run_until_complete(read()) == b"input"


def test_timers_and_threads_are_heard(loop: EventLoop) -> None:
    async def wait() -> str:
        came = asyncio.Event()
        loop.call_later(0.001, came.set)
        await came.wait()
        return await loop.run_in_executor(None, str, "from a thread")

    assert loop.run_until_complete(wait()) == "from a thread"


def test_it_looks_for_input_every_second_iteration(loop: EventLoop) -> None:
    looks: list[str] = []

    def note(_: Any, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in ("poll", "control"):
            looks.append(called.__name__)

    async def iterate() -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    sys.setprofile(note)
    try:
        loop.run_until_complete(iterate())
    finally:
        sys.setprofile(None)
    assert 40 <= len(looks) <= 60


def test_the_environment_switches_debug_mode_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    loop = EventLoop()
    try:
        assert loop.get_debug()
    finally:
        loop.close()

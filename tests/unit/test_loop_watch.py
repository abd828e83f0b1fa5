"""What blocks the event loop of all calls is named, once a minute, and counted."""

import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tarsy_tasks.worker.sessions.session_loop import SessionLoop
from tests.processes import wait_until

BLOCKED_S = 0.3


@pytest.fixture
def loop() -> Iterator[SessionLoop]:
    loop = SessionLoop()
    loop.start()
    yield loop
    loop.stop()


async def wait_in_vain() -> None:
    threading.Event().wait(BLOCKED_S)


async def hold_the_interpreter() -> None:
    """One call of C code, during which no other thread runs."""
    json.dumps([{"a": 1}] * 1_000_000)


@pytest.mark.parametrize("block", [wait_in_vain, hold_the_interpreter])
def test_what_blocks_the_loop_is_named(
    loop: SessionLoop, block: Callable[[], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    name = block.__name__
    for number in (1, 2):
        loop.submit(block()).result(20)
        wait_until(lambda number=number: loop.watch.blocked[name].count == number, f"{name} is named")
    assert loop.watch.blocked[name].seconds >= 0.1
    lines = [message for message in caplog.messages if name in message]
    assert len(lines) == 1
    assert lines[0].startswith("the event loop, which all calls share, was blocked for ")


def test_what_never_ends_is_named_while_it_lasts(loop: SessionLoop, caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    async def wait_for_ever() -> None:
        ended.wait(20)

    waiting = loop.submit(wait_for_ever())
    wait_until(lambda: "wait_for_ever" in caplog.text, "it is named")
    assert not ended.is_set()
    ended.set()
    waiting.result(20)

"""What blocks the event loop of all calls is named, once a minute, and counted."""

import json
import subprocess
import sys
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


def test_a_look_that_fails_does_not_end_the_watch(loop: SessionLoop, caplog: pytest.LogCaptureFixture) -> None:
    odd: dict[str, Any] = {"__name__": None, "wait": lambda: threading.Event().wait(BLOCKED_S)}
    exec("async def block(): wait()", odd)
    for _ in range(2):
        loop.submit(odd["block"]()).result(20)
    loop.submit(wait_in_vain()).result(20)
    wait_until(lambda: loop.watch.blocked["wait_in_vain"].count == 1, "the next one is named")
    assert len([message for message in caplog.messages if message.startswith("a look at the event loop failed")]) == 1


def test_a_system_that_cannot_tell_the_time_of_a_thread_is_watched_too() -> None:
    """As macOS: in a process that has no such function."""
    lines = [
        "import logging, threading, time",
        "del time.pthread_getcpuclockid",
        "from tarsy_tasks.worker.sessions.session_loop import SessionLoop",
        "logging.basicConfig()",
        "async def block(): threading.Event().wait(0.5)",
        "loop = SessionLoop()",
        "loop.start()",
        "loop.submit(block()).result(20)",
        "while not loop.watch.blocked: time.sleep(0.01)",
        "loop.stop()",
    ]
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "by block (" in run.stderr

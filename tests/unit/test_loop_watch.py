"""What blocks the event loop of all calls is named, once a minute."""

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tarsy_tasks.worker.sessions.session_loop import SessionLoop
from tests.processes import wait_until

BLOCKED_S = 0.8
TEXT = re.compile(
    r"the event loop, which all calls share, did not respond for (.*) s, of which it computed for (.*) s; "
    r"it was in (.*) \(task (.*)\)"
)


@pytest.fixture
def prompt() -> Iterator[None]:
    """Threads that start in the test get the processor before other programs, where that is permitted: on a busy
    machine, what blocks the loop would otherwise compute for less than half of the time."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    yield
    os.setpriority(os.PRIO_PROCESS, 0, usual)


@pytest.fixture
def loop(prompt: None) -> Iterator[SessionLoop]:
    loop = SessionLoop()
    loop.start()
    yield loop
    loop.stop()


async def wait_in_vain() -> None:
    threading.Event().wait(BLOCKED_S)


async def compute() -> None:
    until = time.thread_time() + BLOCKED_S
    while time.thread_time() < until:
        pass


async def hold_the_interpreter() -> None:
    """One call of C code, during which no other thread runs."""
    json.dumps([{"a": 1}] * 2_000_000)


async def as_task(name: str, work: Coroutine[Any, Any, None]) -> None:
    await asyncio.create_task(work, name=name)


@pytest.mark.timeout(300)  # on a busy machine, few attempts get the processor for half of the time
@pytest.mark.parametrize("block", [wait_in_vain, compute, hold_the_interpreter])
def test_what_blocks_the_loop_is_named(
    loop: SessionLoop, block: Callable[[], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    def found() -> list[re.Match[str]]:
        return [each for line in caplog.messages if (each := TEXT.match(line)) and block.__name__ in each[3]]

    while not found():
        loop.submit(as_task("github", block())).result(20)
    match, *_ = found()
    took_s, computed_s, place, task = float(match[1]), float(match[2]), match[3], match[4]
    assert took_s >= 0.1
    assert (computed_s < 0.1) == (block is wait_in_vain)
    assert f"{block.__name__} (test_loop_watch.py, line " in place
    assert task == "github"
    loop.submit(as_task("github", block())).result(20)
    places = [match[3] for match in found()]
    assert len(places) == len({*places}), "the same is reported once a minute"


def test_what_never_ends_is_named_while_it_lasts(loop: SessionLoop, caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    async def wait_for_ever() -> None:
        ended.wait(20)

    waiting = loop.submit(wait_for_ever())
    wait_until(lambda: "wait_for_ever" in caplog.text, "it is named")
    assert not ended.is_set()
    ended.set()
    waiting.result(20)


def test_a_loop_that_waits_for_events_is_not_blamed(loop: SessionLoop, caplog: pytest.LogCaptureFixture) -> None:
    """Another thread holds the interpreter: no callback is to blame."""

    async def turn() -> None:
        await asyncio.sleep(0)

    for _ in range(3):
        json.dumps([{"a": 1}] * 1_000_000)
        loop.submit(turn()).result(20)
    assert not [line for line in caplog.messages if "did not respond" in line]

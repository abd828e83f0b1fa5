"""Who may run beside whom after a worker died."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from tarsy_tasks.worker.calls.quarantine import Quarantine

T = TypeVar("T")
LONG_S = 5.0


async def _begun(coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """A task that waits for something by now."""
    task = asyncio.create_task(coroutine)
    for _ in range(3):  # iterations of the event loop, in which all is done that needs no wait
        await asyncio.sleep(0)
    return task


async def _has_to_wait(quarantine: Quarantine, *, alone: bool) -> None:
    with pytest.raises(TimeoutError):
        await quarantine.admit_lost(object(), 0.01, alone=alone)


def test_calls_lost_once_run_side_by_side() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        await quarantine.admit_lost("one", LONG_S, alone=False)
        await quarantine.admit_lost("two", LONG_S, alone=False)

    asyncio.run(run())


def test_a_quarantined_call_excludes_others_until_it_leaves() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        await quarantine.admit_lost("one", LONG_S, alone=True)
        await _has_to_wait(quarantine, alone=False)
        await _has_to_wait(quarantine, alone=True)
        waiting = asyncio.create_task(quarantine.admit_lost("two", LONG_S, alone=True))
        await quarantine.remove("one")
        await waiting
        await _has_to_wait(quarantine, alone=False)

    asyncio.run(run())


def test_a_quarantined_call_waits_for_calls_that_were_lost_once() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        await quarantine.admit_lost("one", LONG_S, alone=False)
        await _has_to_wait(quarantine, alone=True)
        await quarantine.remove("one")
        await quarantine.admit_lost("two", LONG_S, alone=True)

    asyncio.run(run())


def test_leaving_without_having_entered_ends_no_isolation() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        await quarantine.admit_lost("one", LONG_S, alone=True)
        await quarantine.remove("two")
        await _has_to_wait(quarantine, alone=False)
        await quarantine.remove("one")
        await quarantine.remove("one")
        await quarantine.admit_lost("two", LONG_S, alone=True)

    asyncio.run(run())


def test_all_other_calls_wait_for_a_quarantined_call() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        assert await quarantine.admit_lost("one", LONG_S, alone=True)
        assert not quarantine.admit_new("other")
        waiting = [await _begun(quarantine.admit_after_quarantined(each, LONG_S)) for each in ("two", "three")]
        await quarantine.remove("one")
        assert [await each for each in waiting] == [None, None]
        assert quarantine.admit_new("other")

    asyncio.run(run())


def test_a_quarantined_call_waits_for_running_calls() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        assert quarantine.admit_new("other")
        entering = await _begun(quarantine.admit_lost("one", LONG_S, alone=True))
        assert not quarantine.remove_new("other")
        await quarantine.remove("other")
        assert await entering

    asyncio.run(run())


def test_a_call_beside_long_running_calls_is_not_alone() -> None:
    async def run() -> None:
        quarantine = Quarantine(drain_s=0.01)
        assert quarantine.admit_new("other")
        assert not await quarantine.admit_lost("one", LONG_S, alone=True)
        assert quarantine.admit_new("other")

    asyncio.run(run())


def test_isolation_ends_when_others_have_waited_too_long() -> None:
    async def run() -> None:
        quarantine = Quarantine(hold_s=0.01)
        assert await quarantine.admit_lost("one", LONG_S, alone=True)
        assert await quarantine.admit_after_quarantined("other", LONG_S) == "one"
        assert quarantine.admit_new("other")

    asyncio.run(run())


def test_waiting_calls_run_before_the_next_quarantined_one() -> None:
    async def run() -> None:
        quarantine = Quarantine(drain_s=0.01)
        assert await quarantine.admit_lost("one", LONG_S, alone=True)
        waiting = await _begun(quarantine.admit_after_quarantined("other", LONG_S))
        second = await _begun(quarantine.admit_lost("two", LONG_S, alone=True))
        await quarantine.remove("one")
        assert await waiting is None
        assert not await second

    asyncio.run(run())


def test_a_call_without_time_to_wait_is_not_admitted() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        assert await quarantine.admit_lost("one", LONG_S, alone=True)
        with pytest.raises(TimeoutError):
            await quarantine.admit_after_quarantined("other", 0.01)
        await quarantine.remove("one")
        assert await quarantine.admit_lost("two", LONG_S, alone=True)

    asyncio.run(run())

"""Who may run beside whom after a worker died."""

import asyncio

import pytest

from tarsy_tasks.worker.quarantine import Quarantine

LONG_S = 5.0


async def _has_to_wait(quarantine: Quarantine, *, alone: bool) -> None:
    with pytest.raises(TimeoutError):
        await quarantine.enter(object(), 0.01, alone=alone)


def test_suspects_run_together() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        await quarantine.enter("one", LONG_S, alone=False)
        await quarantine.enter("two", LONG_S, alone=False)

    asyncio.run(run())


def test_one_alone_keeps_all_others_out_until_it_leaves() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        await quarantine.enter("one", LONG_S, alone=True)
        await _has_to_wait(quarantine, alone=False)
        await _has_to_wait(quarantine, alone=True)
        waiting = asyncio.create_task(quarantine.enter("two", LONG_S, alone=True))
        await quarantine.leave("one")
        await waiting
        await _has_to_wait(quarantine, alone=False)

    asyncio.run(run())


def test_one_alone_waits_until_the_others_have_left() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        await quarantine.enter("one", LONG_S, alone=False)
        await _has_to_wait(quarantine, alone=True)
        await quarantine.leave("one")
        await quarantine.enter("two", LONG_S, alone=True)

    asyncio.run(run())


def test_who_leaves_without_having_entered_frees_no_place() -> None:
    async def run() -> None:
        quarantine = Quarantine()
        await quarantine.enter("one", LONG_S, alone=True)
        await quarantine.leave("two")
        await _has_to_wait(quarantine, alone=False)
        await quarantine.leave("one")
        await quarantine.leave("one")
        await quarantine.enter("two", LONG_S, alone=True)

    asyncio.run(run())

"""What a server may say unasked: which messages are read, and what an answer costs."""

import asyncio
import json
from collections.abc import Callable

import pytest

from tarsy_tasks.worker.time_budget import Suspension, TimeBudget
from tarsy_tasks.worker.transport.flood import Flood

LOG = b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}'
PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}'
TOOLS_CHANGED = b'{"method": "notifications/tools/list_changed", "jsonrpc": "2.0"}'
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
ANSWER = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"text": "x" * 1_000_000}}).encode()


def _flood() -> Flood:
    return Flood("server", carrier_s=60e-6, reply_s=2e-3)


def _pauses(flood: Flood) -> bool:
    async def is_waited_for() -> bool:
        pause = asyncio.ensure_future(flood.pause())
        for _ in range(3):  # turns of the loop, in which all is done that needs no wait
            await asyncio.sleep(0)
        return not pause.done() and pause.cancel()

    return asyncio.run(is_waited_for())


def test_what_nobody_reads_is_dropped_and_all_else_is_read() -> None:
    flood = _flood()
    assert [flood.admit(text) for text in (LOG, PROGRESS, TOOLS_CHANGED, PING, ANSWER, b"listening ...")] == [
        False,
        *[True] * 5,
    ]


def test_a_burst_is_read_without_a_pause() -> None:
    flood = _flood()
    for _ in range(200):
        flood.admit(LOG)
        flood.admit(PROGRESS)
    assert not _pauses(flood)


def test_a_flood_drops_progress_but_no_change_of_tools() -> None:
    flood = _flood()
    for _ in range(2000):
        flood.admit(PROGRESS)
    assert not flood.admit(PROGRESS)
    assert flood.admit(TOOLS_CHANGED)
    for _ in range(2000):
        flood.admit(LOG)
    assert _pauses(flood)


def test_requests_of_the_server_cost_what_their_answers_cost() -> None:
    flood = _flood()
    for _ in range(200):
        flood.admit(PING)
    assert _pauses(flood)


def test_expected_answers_never_count_as_a_flood() -> None:
    flood = _flood()
    for _ in range(2000):
        flood.expect_answer()
    for _ in range(2000):
        flood.admit(ANSWER)
    assert not _pauses(flood)
    for _ in range(200):
        flood.admit(ANSWER)
    assert _pauses(flood)


def test_a_busy_server_may_tell_of_its_progress() -> None:
    flood = _flood()
    for _ in range(2000):
        flood.expect_answer()
        assert [flood.admit(text) for text in (PROGRESS, PROGRESS, PROGRESS, LOG, ANSWER)] == [*[True] * 3, False, True]
    assert not _pauses(flood)


def test_lines_and_small_chunks_cost_what_they_take() -> None:
    flood = _flood()
    for _ in range(50):
        flood.charge_piece(b"\n" * 16_384, has_event=False)
    assert _pauses(flood)
    flood = _flood()
    for _ in range(50_000):
        flood.charge_chunk(1)
    assert _pauses(flood)


def test_large_answers_in_pieces_of_a_network_are_free() -> None:
    flood = _flood()
    for _ in range(30):  # calls of 500 kB
        flood.expect_answer()
        for _ in range(345):
            flood.charge_piece(b"x" * 1448, has_event=False)
            flood.charge_chunk(1448)
        flood.admit(ANSWER)
    assert not _pauses(flood)
    for _ in range(30 * 345):
        flood.charge_piece(b"x" * 1448, has_event=False)
    assert _pauses(flood)


def test_a_too_large_answer_is_free_up_to_a_size() -> None:
    flood = _flood()
    flood.expect_answer()
    for discarded_bytes in range(0, 100_000_000, 16_384):
        flood.charge_piece(b"x" * 16_384, has_event=False, discarded_bytes=discarded_bytes)
    assert not _pauses(flood)
    flood.admit(ANSWER)
    for _ in range(1000):
        flood.charge_piece(b"x" * 16_384, has_event=False, discarded_bytes=16_384)
    assert _pauses(flood), "nobody waits for this one"


def test_a_suspended_server_is_read_for_its_answers_only() -> None:
    suspension = Suspension(slow_s=0.0)
    suspension.note_excess(_spent(suspension.new_budget(share=1.0, capacity_s=0.1, most_debt_s=10.0)), "it is busy")
    flood = Flood("server", carrier_s=0.0, reply_s=0.0, suspension=suspension)
    assert [flood.admit(text) for text in (TOOLS_CHANGED, PING, ANSWER)] == [False, False, True]


def _spent(budget: TimeBudget) -> TimeBudget:
    budget.charge(10.0)
    assert budget.pause_s()
    return budget


@pytest.mark.parametrize(
    ("send", "cause"),
    [
        (lambda flood: flood.admit(PING), "messages/s"),
        (lambda flood: flood.charge_piece(b":", has_event=False), "tiny pieces"),
        (
            lambda flood: flood.charge_piece(b"\n" * 10_000, has_event=False),
            "lines without a message",
        ),
        (lambda flood: flood.charge_piece(b"x" * 16_384, has_event=False, discarded_bytes=10**7), "too large messages"),
    ],
)
def test_what_costs_most_is_named(send: Callable[[Flood], object], cause: str) -> None:
    suspension = Suspension(slow_s=0.0)
    flood = Flood("server", carrier_s=60e-6, reply_s=2e-3, suspension=suspension)

    async def main() -> None:
        async with asyncio.timeout(60):
            while not suspension.count:
                send(flood)
                await flood.pause()

    asyncio.run(main())
    assert suspension.reason.startswith("it sends more than a worker can read alongside its work: ")
    assert suspension.reason.endswith(cause)


def test_an_event_of_usual_size_costs_nothing() -> None:
    flood = _flood()
    for _ in range(100_000):
        flood.charge_piece(b'data: {"jsonrpc": "2.0", "id": 1, "result": {}}\n\n', has_event=True)
    assert not _pauses(flood)


def test_what_is_read_without_a_wait_leaves_others_their_turn() -> None:
    async def main() -> int:
        flood, turns = _flood(), 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        others = asyncio.create_task(take_turns())
        for _ in range(300):
            flood.admit(TOOLS_CHANGED)
            await flood.pause()
        others.cancel()
        return turns

    assert asyncio.run(main()) > 20

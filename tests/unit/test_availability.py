"""What a server's failures mean for the calls that come after them."""

import time

from tarsy_tasks.worker.sessions.availability import ServerAvailability
from tests.processes import wait_until

LONG_S = 3600.0


def long_ago() -> float:
    return time.monotonic() - LONG_S


def test_a_server_that_never_failed_is_tried() -> None:
    availability = ServerAvailability(LONG_S)
    assert availability.claim_attempt()
    assert not availability.is_expected_back
    assert availability.unreachable_s == 0


def test_a_server_that_just_failed_is_expected_back_and_tried() -> None:
    availability = ServerAvailability(LONG_S)
    availability.record_unreachable("it was lost.", time.monotonic())
    assert availability.is_expected_back
    assert all(availability.claim_attempt() for _ in range(3))


def test_a_server_out_of_reach_after_its_grace_is_not_tried() -> None:
    availability = ServerAvailability(LONG_S / 2)
    availability.record_unreachable("it said nothing.", long_ago())
    assert availability.unreachable_s >= LONG_S
    assert not any(availability.claim_attempt() for _ in range(3))


def test_a_server_that_refuses_fast_is_soon_tried_again() -> None:
    availability = ServerAvailability(0)
    availability.record_unreachable("it refused.", time.monotonic() - 0.001)
    for _ in range(3):
        assert availability.unreachable_s > 0
        wait_until(availability.claim_attempt, "the next attempt", timeout_s=1)


def test_a_single_failure_does_not_make_a_server_unreachable() -> None:
    availability = ServerAvailability(0.001)
    availability.record_unreachable("it was lost.", time.monotonic())
    time_to_return = time.monotonic() + 0.01
    while time.monotonic() < time_to_return:
        assert availability.unreachable_s == 0
    availability.record_unreachable("it was lost again.", time.monotonic())
    assert availability.unreachable_s > 0
    assert availability.reason == "it was lost again."


def test_a_server_that_only_asks_to_wait_is_reachable() -> None:
    availability = ServerAvailability(0)
    availability.record_failure()
    assert availability.unreachable_s == 0
    assert all(availability.claim_attempt() for _ in range(3))


def test_an_answer_ends_all_failures() -> None:
    availability = ServerAvailability(LONG_S / 2)
    availability.record_unreachable("it was lost.", long_ago())
    availability.record_answer()
    assert all(availability.claim_attempt() for _ in range(3))
    assert not availability.is_expected_back

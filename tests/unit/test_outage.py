"""What a server's failures mean for the calls that come after them."""

import time

from tarsy_tasks.worker.sessions.availability import ServerAvailability
from tests.processes import wait_until

LONG_S = 3600.0


def long_ago() -> float:
    return time.monotonic() - LONG_S


def test_a_server_that_never_failed_is_tried() -> None:
    outage = ServerAvailability(LONG_S)
    assert outage.may_try()
    assert not outage.is_expected_to_end
    assert outage.gone_s == 0


def test_a_server_that_failed_just_now_is_expected_back_and_tried() -> None:
    outage = ServerAvailability(LONG_S)
    outage.note_absence("it was lost", time.monotonic())
    assert outage.is_expected_to_end
    assert all(outage.may_try() for _ in range(3))


def test_a_server_that_is_out_of_reach_after_its_time_to_return_is_not_tried_for_a_while() -> None:
    outage = ServerAvailability(LONG_S / 2)
    outage.note_absence("it said nothing", long_ago())
    assert outage.gone_s >= LONG_S
    assert not any(outage.may_try() for _ in range(3))


def test_a_server_whose_absence_shows_at_once_is_soon_tried_again() -> None:
    outage = ServerAvailability(0)
    outage.note_absence("it refused", time.monotonic() - 0.001)
    for _ in range(3):
        assert outage.gone_s > 0
        wait_until(outage.may_try, "the next attempt", timeout_s=1)


def test_a_single_failure_does_not_become_an_absence_by_itself() -> None:
    outage = ServerAvailability(0.001)
    outage.note_absence("it was lost", time.monotonic())
    time_to_return = time.monotonic() + 0.01
    while time.monotonic() < time_to_return:
        assert outage.gone_s == 0
    outage.note_absence("it was lost again", time.monotonic())
    assert outage.gone_s > 0
    assert outage.reason == "it was lost again"


def test_a_server_that_only_asks_to_wait_is_not_gone() -> None:
    outage = ServerAvailability(0)
    outage.note_failure()
    assert outage.gone_s == 0
    assert all(outage.may_try() for _ in range(3))


def test_an_answer_ends_it() -> None:
    outage = ServerAvailability(LONG_S / 2)
    outage.note_absence("it was lost", long_ago())
    outage.end()
    assert all(outage.may_try() for _ in range(3))
    assert not outage.is_expected_to_end

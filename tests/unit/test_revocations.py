"""What is read of Celery's set of revoked tasks, which may have 50 000 ids."""

import tracemalloc

from celery.utils.collections import LimitedSet

from tarsy_tasks.worker.process.revocations import Revocations


def test_each_revocation_is_taken_once() -> None:
    revoked = LimitedSet(maxlen=50_000)
    revocations = Revocations(revoked)
    assert revocations.take() == set()
    revoked.update(["before"])
    assert revocations.take() == {"before"}
    assert revocations.take() == {"before"}, "it was not dealt with"
    revocations.confirm()
    assert revocations.take() == set()
    revoked.update(str(number) for number in range(1000))
    assert revocations.take() == {str(number) for number in range(1000)}
    revocations.confirm()
    revoked.update(["before", 7, "new"])
    assert revocations.take() == {"before", "new"}, "also one that is revoked once more"


def test_a_set_that_is_full_still_has_new_ones() -> None:
    revoked = LimitedSet(maxlen=100)
    revocations = Revocations(revoked)
    for number in range(500):
        revoked.add(str(number))
        assert revocations.take() == {str(number)}
        revocations.confirm()


def test_a_look_costs_the_same_however_many_there_are() -> None:
    revoked = LimitedSet(maxlen=50_000)
    revoked.update(str(number) for number in range(50_000))
    revocations = Revocations(revoked)
    assert len(revocations.take()) == len(revoked)
    revocations.confirm()
    revoked.add("new")
    tracemalloc.start()
    try:
        assert revocations.take() == {"new"}
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10_000, "50 000 ids were copied or sorted"

"""Celery's sets of requests, while calls come and go."""

from typing import Any

import pytest
from celery.worker import state

from tarsy_tasks.worker.process.request_sets import make_safe_to_share


class Request:
    """Of Celery, as far as a set knows it."""


@pytest.mark.parametrize("name", ["active_requests", "reserved_requests"])
def test_a_set_is_read_as_it_was_when_it_changes_meanwhile(name: str) -> None:
    make_safe_to_share()
    requests: Any = getattr(state, name)
    first, second, third = Request(), Request(), Request()
    requests.update([first, second])
    read = iter(requests)
    found = {next(read)}
    requests.discard(second)
    requests.add(third)
    assert found | set(read) == {first, second}
    assert set(requests) - {first} == {third}
    requests.clear()


def test_what_nobody_else_keeps_is_gone() -> None:
    make_safe_to_share()
    state.active_requests.add(Request())
    assert list(state.active_requests) == []

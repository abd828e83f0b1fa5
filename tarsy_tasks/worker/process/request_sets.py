"""Celery's sets of the requests that it has reserved and that run.

Owns that they can be read in one thread while another one changes them: the session loop adds and removes plain calls
while Celery's consumer lists them for `inspect active`, for a revoke by a stamp, or when its connection was lost.
"""

from collections.abc import Iterator
from typing import Any, cast
from weakref import ReferenceType, WeakSet

from celery.worker import state

__all__ = ["make_safe_to_share"]


class _SharedSet(WeakSet[Any]):
    """Is iterated over as it was at the beginning. Stock raises `RuntimeError` when it is changed meanwhile."""

    def __iter__(self) -> Iterator[Any]:
        references = cast("set[ReferenceType[Any]]", vars(self)["data"])
        # To copy it is one step for Python: no other thread runs within that.
        return iter([found for reference in references.copy() if (found := reference()) is not None])


def make_safe_to_share() -> None:
    """Have Celery's sets, which its modules know by name, behave so."""
    for requests in (state.reserved_requests, state.active_requests):
        requests.__class__ = _SharedSet

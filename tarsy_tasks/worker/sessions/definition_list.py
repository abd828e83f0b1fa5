"""The definitions that a server lists, collected page by page: built in slices off the event loop, and bounded."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from mcp_types import CacheableResult

from tarsy_tasks.models import FrozenModel
from tarsy_tasks.worker.long_work import ASKED_S, LongWork
from tarsy_tasks.worker.sessions.cache_hints import read_fresh_s
from tarsy_tasks.worker.sessions.definition_fields import count_chars
from tarsy_tasks.worker.sessions.paging import ListingError

__all__ = ["DefinitionList"]

_MAX_CHARS = 1024 * 1024
"""Of all that is kept of one list."""
_SLICE = 50

T = TypeVar("T")
Definition = TypeVar("Definition", bound=FrozenModel)


class DefinitionList(Generic[Definition]):
    """What a server has listed so far; `method` is MCP's name of the request.

    Attributes:
        fresh_s: How long its server lets it be kept, the least of all pages; None if it does not say.
    """

    def __init__(self, method: str) -> None:
        self.fresh_s: float | None = None
        self._method = method
        self._found: list[Definition] = []
        self._chars = 0

    @property
    def definitions(self) -> tuple[Definition, ...]:
        return tuple(self._found)

    def note_hint(self, page: CacheableResult) -> None:
        if (found := read_fresh_s(page)) is not None:
            self.fresh_s = found if self.fresh_s is None else min(self.fresh_s, found)

    async def add(self, page: Sequence[T], build: Callable[[T], Definition], long_work: LongWork) -> None:
        for start in range(0, len(page), _SLICE):
            await long_work.run(self._add, page[start : start + _SLICE], build, allowed_s=ASKED_S)

    def _add(self, page: Sequence[T], build: Callable[[T], Definition]) -> None:
        for each in page:
            definition = build(each)
            self._chars += count_chars(definition.model_dump(mode="json"))
            if self._chars > _MAX_CHARS:
                raise ListingError(f"has a {self._method} of more than {_MAX_CHARS} characters")
            self._found.append(definition)

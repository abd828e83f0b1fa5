"""The definitions that a server lists, all pages of them: built in slices off the event loop, and bounded."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mcp_types import PaginatedResult

from tarsy_tasks.models import FrozenModel
from tarsy_tasks.worker.long_work import ASKED_S, LongWork
from tarsy_tasks.worker.sessions.cache_hints import least, read_fresh_s
from tarsy_tasks.worker.sessions.definition_fields import count_chars
from tarsy_tasks.worker.sessions.paging import ListingError, read_pages

__all__ = ["DefinitionList", "list_definitions"]

_MAX_CHARS = 1024 * 1024
"""Of all that is kept of one list."""
_SLICE = 50

T = TypeVar("T")
PageT = TypeVar("PageT", bound=PaginatedResult)
Definition = TypeVar("Definition", bound=FrozenModel)


@dataclass(frozen=True)
class DefinitionList(Generic[Definition]):
    """What a server has listed.

    Attributes:
        fresh_s: How long its server lets it be kept, the least of all pages; None if it does not say.
    """

    definitions: tuple[Definition, ...] = ()
    fresh_s: float | None = None


async def list_definitions(
    method: str,
    fetch: Callable[[str | None], Awaitable[PageT]],
    entries_of: Callable[[PageT], Sequence[T]],
    build: Callable[[T], Definition],
    long_work: LongWork,
) -> DefinitionList[Definition]:
    """All that a server lists.

    Args:
        method, fetch: As for `read_pages`.
        entries_of: What is on a page.
        build: What is kept of an entry, masked; called off the event loop.

    Raises:
        ListingError: The list does not end, or is too long.
        MCPError: The request failed.
    """
    kept = _Definitions[Definition](method)
    fresh_s: float | None = None
    async for page in read_pages(method, fetch, lambda page: len(entries_of(page))):
        entries, fresh_s = entries_of(page), least(fresh_s, read_fresh_s(page))
        for start in range(0, len(entries), _SLICE):
            await long_work.run(kept.add, entries[start : start + _SLICE], build, allowed_s=ASKED_S)
    return DefinitionList(tuple(kept.definitions), fresh_s)


class _Definitions(Generic[Definition]):
    """The definitions that a server has listed so far."""

    def __init__(self, method: str) -> None:
        self.definitions: list[Definition] = []
        self._method = method
        self._chars = 0

    def add(self, entries: Sequence[T], build: Callable[[T], Definition]) -> None:
        for each in entries:
            definition = build(each)
            self._chars += count_chars(definition.model_dump(mode="json"))
            if self._chars > _MAX_CHARS:
                raise ListingError(f"has a {self._method} of more than {_MAX_CHARS} characters")
            self.definitions.append(definition)

"""Lists that a server gives page by page, of which not every server finds the end.

Owns when such a list is over, or endless. What is in a page, its caller knows.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

__all__ = ["ListingError", "Page", "read_pages"]

_MAX_PAGES = 200
_MAX_ENTRIES = 10_000


class Page(Protocol):
    """One page of a list.

    Attributes:
        next_cursor: Of the next page; None on the last one.
    """

    next_cursor: str | None


PageT = TypeVar("PageT", bound=Page)


class ListingError(Exception):
    """The server has no usable list; the text continues a sentence that begins with "it"."""


async def read_pages(
    method: str, fetch: Callable[[str | None], Awaitable[PageT]], count_entries: Callable[[PageT], int]
) -> AsyncIterator[PageT]:
    """All pages of a list.

    Args:
        method: MCP's name of the request, for the error.
        fetch: Asks for the page of a cursor; None: the first one.

    Raises:
        ListingError: The pages repeat or never end, or have more entries than are read.
    """
    cursor: str | None = None
    seen: set[str] = set()
    count = 0
    for _ in range(_MAX_PAGES):
        page = await fetch(cursor)
        yield page
        count += count_entries(page)
        cursor = page.next_cursor
        if cursor is None:
            return
        if cursor in seen or count > _MAX_ENTRIES:
            break
        seen.add(cursor)
    raise ListingError(f"has an endless {method} (stopped after {len(seen)} pages and {count} entries)")

"""`@native_tool`: marks a function as a tool of its module.

Owns the mark, which changes nothing about the function. What reads it is in `tool`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

__all__ = ["NativeMark", "find_mark", "native_tool"]

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__tarsy_tool__"


@dataclass(frozen=True, slots=True)
class NativeMark:
    """What was said of a function; attributes are those of `native_tool`."""

    name: str | None = None
    description: str | None = None
    read_only: bool = False
    idempotent: bool = False


@overload
def native_tool(function: F, /) -> F: ...
@overload
def native_tool(
    *, name: str | None = None, description: str | None = None, read_only: bool = False, idempotent: bool = False
) -> Callable[[F], F]: ...
def native_tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
) -> Any:
    """Mark a function as a tool of its module (docs/native-tools.md). It is returned as it is.

    Args:
        function: A function or coroutine function, with annotations of its parameters.
        name: Of the tool; None: that of the function.
        description: For models; None: its docstring.
        read_only: It changes nothing, so that a call that may have run is sent again.
        idempotent: Calling it again with the same arguments changes nothing more.
    """
    found = NativeMark(name, description, read_only, idempotent)

    def mark(each: F) -> F:
        setattr(each, _ATTRIBUTE, found)
        return each

    return mark if function is None else mark(function)


def find_mark(function: object) -> NativeMark | None:
    """The mark of a function; None without one."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, NativeMark) else None

"""The result of one check.

Owns its shape and the four severities. It checks nothing itself.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Severity", "name_some"]

_SHOWN = 10


class Severity(StrEnum):
    """How bad it is. Only errors change the exit code of `doctor`."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What was found, where, and the remedy.

    Attributes:
        check: What was checked: one or two stable words, with the server's id if it is about a server.
        text: What was found.
        remedy: What to do about it; None if there is nothing to do.
    """

    check: str
    severity: Severity
    text: str
    remedy: str | None = None

    @classmethod
    def ok(cls, check: str, text: str) -> "Finding":
        return cls(check, Severity.OK, text)

    @classmethod
    def note(cls, check: str, text: str, remedy: str | None = None) -> "Finding":
        return cls(check, Severity.NOTE, text, remedy)

    @classmethod
    def warning(cls, check: str, text: str, remedy: str) -> "Finding":
        return cls(check, Severity.WARNING, text, remedy)

    @classmethod
    def error(cls, check: str, text: str, remedy: str) -> "Finding":
        return cls(check, Severity.ERROR, text, remedy)


def name_some(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"

"""One thing that was looked at, and how it is.

Owns the shape and the four severities. It looks at nothing itself.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Severity"]


class Severity(StrEnum):
    """How bad it is. Only an error makes `doctor` say no."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        check: What was looked at: a stable word or two, with the server's id where there is one.
        text: How it is.
        remedy: What to do about it; None when there is nothing to do.
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

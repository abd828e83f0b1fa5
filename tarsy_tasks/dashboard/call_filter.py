"""The filter of the Calls page, as the words of an address, and as the filter of audit entries that they mean.

Owns the words, which docs/dashboard.md documents, and their errors. Times in addresses are UTC.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.priorities import NORMAL, PRIORITIES
from tarsy_tasks.telemetry.audit import LATEST_S, AuditFilter
from tarsy_tasks.telemetry.metrics import FAILURES

__all__ = ["GROUPS", "SPANS_S", "TEXTS", "CallQuery", "read_call_query"]

TEXTS = ("server", "tool", "worker", "agent_id", "principal", "priority", "run_id", "call_id", "error_code")
"""The words whose values are texts."""
GROUPS: Mapping[str, frozenset[Outcome]] = {
    "failed": FAILURES,
    "not_ok": frozenset(set(Outcome) - {Outcome.OK}),
}
"""Values of `outcome` that mean several."""
SPANS_S: Mapping[str, int] = {"15m": 900, "1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600, "7d": 7 * 24 * 3600}
"""Values of `last`."""
_MINUTE_S = 60
_EPOCH = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")


@dataclass(frozen=True)
class CallQuery:
    """A filter, and the words that it was made of, without those that are empty."""

    wanted: AuditFilter
    words: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """The value of a word, empty if there is none."""
        return next((value for word, value in self.words if word == name), "")

    def with_words(self, **changes: str) -> list[tuple[str, str]]:
        """The words with others in their place; an empty value removes one."""
        kept = [(name, value) for name, value in self.words if name not in changes]
        return [*kept, *((name, value) for name, value in changes.items() if value)]


def read_call_query(read: Callable[[str], Iterable[str]], now: float) -> CallQuery:
    """The filter in an address.

    Args:
        read: The values of a word, in the order of the address.
        now: Seconds since the epoch, by the clock of Redis.

    Raises:
        ValueError: A value is not valid; the text names the word and what is.
    """
    words: list[tuple[str, str]] = []
    fields: dict[str, Any] = {}
    for name in TEXTS:
        if value := next((each for each in read(name) if each), ""):
            words.append((name, value))
            fields[name] = value
    if fields.get("priority", NORMAL) not in PRIORITIES:
        raise ValueError(f"priority is not valid; use one of {', '.join(PRIORITIES)}")
    outcomes: set[Outcome] = set()
    for value in filter(None, read("outcome")):
        words.append(("outcome", value))
        outcomes |= _outcomes(value)
    if outcomes:
        fields["outcomes"] = frozenset(outcomes)
    for name in ("since", "until"):
        if value := next((each for each in read(name) if each), ""):
            words.append((name, value))
            fields[name] = _time(name, value)
    if value := next((each for each in read("last") if each), ""):
        if value not in SPANS_S:
            raise ValueError(f"last is not valid; use one of {', '.join(SPANS_S)}")
        words.append(("last", value))
        # To the minute, so that what is read of an hour long ago can be cached.
        fields["since"] = max(0.0, now // _MINUTE_S * _MINUTE_S - SPANS_S[value])
    if fields.get("since", 0.0) > fields.get("until", LATEST_S):
        raise ValueError("since is later than until")
    return CallQuery(AuditFilter.model_validate(fields), tuple(words))


def _outcomes(value: str) -> frozenset[Outcome]:
    if value in GROUPS:
        return GROUPS[value]
    try:
        return frozenset({Outcome(value)})
    except ValueError:
        raise ValueError(f"outcome is not valid; use one of {', '.join([*Outcome, *GROUPS])}") from None


def _time(name: str, value: str) -> float:
    wrong = ValueError(f"{name} is not valid; use a time in UTC such as 2026-11-23T04:05, or seconds since the epoch")
    if _EPOCH.fullmatch(value):
        return min(float(value), float(LATEST_S))
    try:
        at = datetime.fromisoformat(value)
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise wrong from None
    if not 0 <= seconds <= LATEST_S:
        raise wrong
    return seconds

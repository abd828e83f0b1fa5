"""Patterns that a configuration adds.

Owns their limits. The syntax is RE2's: it has no look-around and no back references, and one search takes time linear
in the text; the time of all searches together is limited here.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence

import re2

from tarsy_tasks.masking.edits import MASK, Edit

__all__ = ["CustomPatterns", "compile_pattern"]

_MEMORY_BYTES = 8 * 1024 * 1024
# At worst RE2 takes some 4 ns for each character and each step of a pattern.
_MAX_STEPS = 2000
# Many times what a search takes. A pattern such as `a.*z|a` looks through the rest of the text for each `a`.
_CPU_S, _CPU_S_PER_CHARACTER = 1.0, 2e-6
_SAMPLES, _SAMPLE_CHARS = 16, 4096


class CustomPatterns:
    """Finds what any of some patterns match: the first group of one that has groups, else the whole match.

    Raises:
        ValueError: As `compile_pattern`.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [compile_pattern(pattern) for pattern in patterns]

    def find(self, text: str) -> Iterator[Edit]:
        """What is to be masked. Raises `TimeoutError` when the patterns take far too long on this text."""
        last_s = time.thread_time() + _CPU_S + _CPU_S_PER_CHARACTER * len(text)
        searched = text if _is_encodable(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for pattern in self._patterns:
            _check_time(pattern, searched, last_s)
            for match in pattern.finditer(searched):
                if time.thread_time() > last_s:
                    raise TimeoutError("custom patterns took too long")
                found = match.span(1 if pattern.groups and match.start(1) >= 0 else 0)
                start, end = _between_masks(text, *found)
                if start < end and text[start:end] != MASK:
                    yield Edit(start, end)


def _between_masks(text: str, start: int, end: int) -> tuple[int, int]:
    """What of a match is none of a mask at its beginning or end; a mask that it holds as a whole goes with it."""
    length = len(MASK)
    before = text.rfind(MASK, max(0, start - length + 1), start + length - 1)
    after = text.find(MASK, max(0, end - length + 1), end + length - 1)
    return (start if before < 0 else before + length), (end if after < 0 else after)


def _check_time(pattern: "re2.Pattern", text: str, last_s: float) -> None:
    """Refuse a search that is sure to take too long: once it has begun it cannot be stopped before the next match."""
    if len(text) <= _SAMPLES * _SAMPLE_CHARS:
        return
    started_s = time.thread_time()
    for place in range(0, len(text), len(text) // _SAMPLES):
        deque(pattern.finditer(text[place : place + _SAMPLE_CHARS]), maxlen=0)
    took_s = time.thread_time() - started_s
    if started_s + took_s * len(text) / (_SAMPLES * _SAMPLE_CHARS) > last_s:
        raise TimeoutError("custom patterns would take too long")


def compile_pattern(pattern: str) -> "re2.Pattern":
    """The pattern, ready for searches.

    Raises:
        ValueError: It is not a pattern, or one that matches empty text, or too large; the text says which.
    """
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"not a valid RE2 pattern: {_reason(error)}") from None
    except UnicodeEncodeError:
        raise ValueError("not a valid pattern: it contains half of a surrogate pair") from None
    if compiled.programsize > _MAX_STEPS:
        raise ValueError("the pattern is too large; check for nested repetitions such as `{1000}`")
    if compiled.search("") is not None:
        raise ValueError("the pattern matches the empty string, so it matches everywhere")
    return compiled


def _reason(error: "re2.error") -> str:
    """What RE2 says, without the part of the pattern that it quotes."""
    reason = error.args[0] if error.args else b"unknown"
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    missing = "look-around is" if "(?" in text else "back references are" if "escape" in text else ""
    return text.partition(":")[0] + (f" ({missing} not supported)" if missing else "")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

"""Masking: what leaves a worker carries no secret.

Owns the patterns, their groups and the walk over JSON. It stands between an MCP server's words and everything that
stores or shows them (results, error texts, logs). It fails closed: what cannot be masked is replaced by a notice.
"""

import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import JsonValue

__all__ = ["DEFAULT_GROUPS", "Masker", "build_masker"]

logger = logging.getLogger(__name__)

DEFAULT_GROUPS = ("basic",)
_MASK = "***MASKED***"
_NOTICE = "[masked whole: this text could not be searched for secrets]"
_WINDOW = 64 * 1024
_OVERLAP = 1024
"""No key with its separator is longer, so one that begins near the end of a window is found whole in the next."""


def _keyword_pattern(*words: str) -> re.Pattern[str]:
    """A key with one of the words at the end of its name, a separator and a value, as JSON, YAML, .env or a header
    spell it.
    """
    word = "|".join(words)
    capitalised = "|".join(word[0].upper() + word[1:] for word in words)
    return re.compile(
        rf"(?P<key>(?:(?<![A-Za-z])(?i:{word})|(?<=[a-z])(?:{capitalised}))"
        r"(?P<quote>\\?[\"']?)[ \t]{0,8}[:=][ \t]{0,8})"
        r"(?:(?P<open>\\?\"|')(?:(?!(?P=open))(?:\\.|[^\\\n]|\\(?=\")))+(?P=open)|[^\s\"'\\,;&}\]\)]{3,})"
    )


PATTERNS: dict[str, re.Pattern[str]] = {
    "api_key": _keyword_pattern(r"api[_-]?key"),
    "password": _keyword_pattern("password", "passwd", "passphrase", "pwd"),
}
GROUPS: dict[str, tuple[str, ...]] = {"basic": ("api_key", "password")}
_SECRET_KEY = re.compile(r"(?i)(?:api[_-]?key|password|passwd|passphrase|pwd)$")


@dataclass(frozen=True)
class Masker:
    """Masks texts and JSON values with a fixed set of patterns. Safe to share between threads."""

    patterns: tuple[re.Pattern[str], ...]

    def mask(self, text: str) -> str:
        """The text with every secret replaced; JSON stays JSON. Long texts are searched in windows, so that no search
        holds the interpreter for long."""
        try:
            for pattern in self.patterns:
                text = _replace(pattern, text) if len(text) > _WINDOW else pattern.sub(_mask_value, text)
        except Exception:
            logger.exception("masking failed")
            return _NOTICE
        return text

    def mask_json(self, value: JsonValue) -> JsonValue:
        """The value with its texts masked, and whole values under keys that are named like secrets."""
        if not self.patterns:
            return value
        try:
            return self._masked(value)
        except Exception:
            logger.exception("masking failed")
            return _NOTICE

    def _masked(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, dict):
            return {
                self.mask(key): _MASK if _SECRET_KEY.search(key) and _is_secret(item) else self._masked(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._masked(item) for item in value]
        return value


def build_masker(groups: Iterable[str] | None = None) -> Masker:
    """The masker for the named groups of patterns.

    Args:
        groups: Names from `GROUPS`; None means the default, `basic`.

    Raises:
        ValueError: There is no such group; the text lists what there is.
    """
    names = DEFAULT_GROUPS if groups is None else tuple(groups)
    for name in names:
        if name not in GROUPS:
            raise ValueError(f"there is no masking group {name!r}; there are: {', '.join(sorted(GROUPS))}")
    members = dict.fromkeys(member for name in names for member in GROUPS[name])
    return Masker(tuple(PATTERNS[member] for member in members))


def _is_secret(value: JsonValue) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""


def _mask_value(match: re.Match[str]) -> str:
    # A number under a quoted key is JSON: its mask needs the quotes that a text would have.
    quote = match["open"] or match["quote"]
    return f"{match['key']}{quote}{_MASK}{quote}"


def _replace(pattern: re.Pattern[str], text: str) -> str:
    parts: list[str] = []
    copied = position = 0
    while position < len(text):
        end = min(len(text), position + _WINDOW)
        match = pattern.search(text, position, end)
        if match is not None and match.end() == end and end < len(text):
            match = pattern.match(text, match.start())
        if match is not None:
            parts += text[copied : match.start()], _mask_value(match)
            copied = position = match.end()
        else:
            position = end if end == len(text) else end - _OVERLAP
            time.sleep(0)  # lets the other threads have the interpreter
    parts.append(text[copied:])
    return "".join(parts)

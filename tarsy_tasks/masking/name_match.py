"""A name of a secret, at its position in a text.

Owns the text around it that determines how its value is read. `assignments` finds names; its readers, `markup` and
`value_lists` read the values.
"""

import re
from typing import NamedTuple

from tarsy_tasks.masking.names import Strength

__all__ = ["NAME_LIMIT", "NameMatch"]

NAME_LIMIT = 100
_BEFORE_LIMIT = 160
_LINE_BEFORE = re.compile(
    r"[-+~*>|#;!<$:? \t]*(?:(?:export|set|setx|declare|local|readonly|env|const|let|var|final|static"
    r"|private|public|ENV|ARG)[ \t]+(?:-\w+[ \t]+)*)*[\\\"'`*_]*"
)
_TELLING = re.compile(
    r"(?i)(?:name|key|id|type|variable|output|field|param|parameter|header|setting|property|option)\W{1,8}$"
)
_QUOTES = frozenset("\"'`")


class NameMatch(NamedTuple):
    """A name in a text, with the text after it."""

    text: str
    start: int
    end: int
    strength: Strength
    tail: re.Match[str]

    @property
    def name(self) -> str:
        return self.text[self.start : self.end]

    @property
    def before(self) -> str:
        """The text before the name, in its line and the one above."""
        return self.text[max(0, self.start - _BEFORE_LIMIT) : self.start]

    @property
    def is_labelled(self) -> bool:
        """Whether it is the value of a `name` or `key` field: the secret is in the next field."""
        return _TELLING.search(self.before) is not None

    @property
    def opened(self) -> str:
        """The quote right before the name, if it is still open behind it."""
        quote = self.text[max(0, self.start - 1) : self.start]
        return quote if quote in _QUOTES and quote not in self.tail[0] else ""

    @property
    def line_start(self) -> int | None:
        """Where the line begins, if there is nothing before the name that cannot be in a settings file, and the name
        has no quotes, as in code."""
        before = self.before
        line = before[before.rfind("\n") + 1 :]
        is_whole = len(line) < len(before) or self.start <= _BEFORE_LIMIT
        is_setting = is_whole and _LINE_BEFORE.fullmatch(line) and not _QUOTES.intersection(self.tail[0])
        return self.start - len(line) if is_setting else None

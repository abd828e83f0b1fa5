"""Which regular expressions of a schema may run.

Owns one judgement: whether a `pattern` that came from an MCP server is cheap on a given text. Python's engine
backtracks, and a server's schema must not be able to hang a worker. What is not proven cheap is not checked; the
server checks it itself."""

import re
from dataclasses import dataclass

__all__ = ["CheapPattern", "compile_pattern"]

_LONGEST_PATTERN = 1000
_MOST_STEPS = 200_000
_MOST_REPEATS = 1000
_TOKEN = re.compile(
    r"(?P<reference>\\[1-9]|\\[gk]|\(\?P=|\(\?\()|(?P<escape>\\.)|(?P<set>\[\^?\]?(?:[^\]\\]|\\.)*+\])"
    r"|(?P<open>\((?:\?(?:P?<[A-Za-z_]\w*>|[:=!]|<[=!]))?)|(?P<close>\))|(?P<quantifier>[*+?]|\{[0-9]*(?P<comma>,?)[0-9]*\})"
    r"|(?P<alternative>\|)|(?P<literal>.)",
    re.DOTALL,
)
# Python warns about these inside of sets, because it may give them a meaning some day.
_SET_OPERATORS = re.compile(r"--|&&|~~|\|\||\[.*\[")


@dataclass(frozen=True, slots=True)
class CheapPattern:
    """A pattern with a bound on its work: `2 ** choices * length ** degree` steps."""

    regex: re.Pattern[str]
    choices: int
    degree: int

    def matches(self, text: str) -> bool:
        """Whether it is found in `text`; also true when finding out could cost too much."""
        if (1 << self.choices) * max(len(text), 1) ** self.degree > _MOST_STEPS:
            return True
        return self.regex.search(text) is not None


def compile_pattern(pattern: str) -> CheapPattern | None:
    """The pattern, or None when it is no regular expression of Python, or can backtrack without bound."""
    if len(pattern) > _LONGEST_PATTERN:
        return None
    work = _work(pattern)
    if work is None:
        return None
    try:
        regex = re.compile(pattern, re.ASCII)
    except (re.error, RecursionError, OverflowError, ValueError):
        return None
    return CheapPattern(regex, *work)


def _work(pattern: str) -> tuple[int, int] | None:
    """Choices and degree; None for a repeated group that itself repeats or chooses, for references and oddities."""
    choices = 0
    degree = 0 if pattern.startswith("^") else 1
    groups = [False]  # for each open group: does it repeat or choose?
    closed: bool | None = None  # the group that ended just before
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup if token.lastgroup != "comma" else "quantifier"
        text = token[0]
        if kind == "reference" or (kind == "set" and _SET_OPERATORS.search(text[1:])):
            return None
        if kind == "open":
            groups.append(False)
        elif kind == "alternative":
            choices += 1
            groups[-1] = True
            degree += len(groups) == 1  # a top-level alternative need not begin with ^
        elif kind == "quantifier":
            if text == "?":
                choices += 1
            elif closed or any(int(count) > _MOST_REPEATS for count in re.findall("[0-9]{1,9}", text)):
                return None
            elif text in "*+" or token["comma"]:
                degree += 1
            groups[-1] = True
        if kind == "close":
            if len(groups) == 1:
                return None
            closed = groups.pop()
            groups[-1] |= closed
        else:
            closed = None
    return (choices, degree) if choices < 60 and degree < 12 else None

"""Secrets that stand behind a name: `password: x`, `API_KEY=x`, `"token": "x"`, `--token x`, `<secret>x</secret>`.

Owns how a name and its value are written in whatever is no JSON: settings, code, logs, command lines, markup, prose.
Which names count is `names`' to say, whether a value is a secret `values`', and where it ends `value_spans`'.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tarsy_tasks.masking.edits import MASK, Edit
from tarsy_tasks.masking.headers import find_in_header
from tarsy_tasks.masking.names import STEMS, Strength, rate_name
from tarsy_tasks.masking.search import Search
from tarsy_tasks.masking.value_spans import Value, read_value
from tarsy_tasks.masking.values import is_made_up, is_prose, is_secret, looks_random

__all__ = ["ASSIGNED", "find_assigned"]

_NAME_LIMIT = 100
_BEFORE_LIMIT = 160
_TAG_LIMIT = 4096

_ANSI = r"(?:\x1b\[[0-9;]*m)"
_TYPE = r"(?:string|String|str|bytes|text|char|Secret|SecretStr|Final|any|object|\[\]byte)"
_ASSIGNED = (
    rf"(?:[\\\"'`\]?!]|%22|%27|{_ANSI})*[ \t]*(?:value[ \t]*)?(?:\([^()\n]{{0,24}}\)[ \t]*)?(?:{_TYPE}[ \t]+)?{_ANSI}*"
    r"(?:=>|:=|==|[:=]|%3[AaDd])"
)
_LISTED = r"\\*[\"'][ \t]*,[ \t]*(?:[A-Za-z]?\\*[\"'])"
_CALLED = r"\([ \t]*[A-Za-z]?\\*[\"'`]"
_PAIRED = (
    r"\\*[\"']?[ \t]*[,;{}]?\s*(?:(?:type|description|sensitive)[ \t]*=[^\n]*\n\s*)*(?:\\*[\"'])?"
    r"(?i:value|val|default|default_?value|content|string_?value)\\*[\"']?[ \t]*[:=]"
)
_TAGGED = r"\\*[\"']?[ \t]*>"
_POSTED = r"\\*[\"'](?:;[^\n]*)?\r?\n(?:Content-[^\n]*\n)*\r?\n"
_FOLLOWED = r"\\*[\"'`]?[ \t]+[^\s]"

ASSIGNED = rf"{STEMS}[\w.\-]*(?:{_PAIRED}|{_ASSIGNED}|{_LISTED}|{_CALLED}|{_TAGGED}|{_POSTED}|{_FOLLOWED})"
"""A name with whatever may stand between it and its value."""

_search = Search([ASSIGNED])
_NAME = re.compile(rf"{STEMS}[\w.\-]*", re.ASCII)
_TAIL = re.compile(
    rf"(?P<paired>{_PAIRED})|(?P<assigned>{_ASSIGNED})|(?P<listed>{_LISTED})|(?P<called>{_CALLED})"
    rf"|(?P<tagged>{_TAGGED})|(?P<posted>{_POSTED})|(?P<followed>{_FOLLOWED})"
)
_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/$")

_LINE_BEFORE = re.compile(
    r"[ \t]*(?:[-+~*>|#;!<$:?][-+~ \t]*)*(?:(?:export|set|setx|declare|local|readonly|env|const|let|var|final|static"
    r"|private|public|ENV|ARG)[ \t]+(?:-\w+[ \t]+)*)*[\\\"'`]*"
)
_NAMED = re.compile(r"(?i:name|key|id|variable|output|field|param|parameter|header|setting|property)\W{1,8}$")
_SHELL = re.compile(r"(?:^|\s)(?:ENV|ARG|export|setenv|setx|set)[ \t]+(?:-\w+[ \t]+)*$")
_LOGIN = re.compile(r"(?:^|\s)(?:machine|default|login|account)[ \t][^\n]*\n?[^\n]*$")
_CONNECTOR = re.compile(r"\\*[\"'`]?[ \t]+(?:(?:is|was|to|as|are|reads|equals|set to)[ \t]*:?[ \t]+)?")
_DATA_HEADING = re.compile(r"[ \t]*\n-{3,}\n")
_CHANGED = re.compile(r"[\"'][ \t]*[-=]>[ \t]*(?=[\"'])")
_OPEN_TAG = re.compile(r"[^<>]{0,300}>")
_READING = re.compile(
    r"(?i)(?:get|load|fetch|read|find|lookup|has|is|validate|check|verify|require|delete|remove|list|describe|rotate"
    r"|refresh|revoke|parse|resolve|input|label|test|expect)(?=[_A-Z]|$)"
)


class _Named(NamedTuple):
    """A name in a text, with what follows it."""

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
        """What stands before the name, in its line and the one above."""
        return self.text[max(0, self.start - _BEFORE_LIMIT) : self.start]

    @property
    def line_start(self) -> int | None:
        """Where the line begins, if nothing stands in it before the name that would not do so in a file of settings."""
        before = self.before
        line = before[before.rfind("\n") + 1 :]
        is_whole = len(line) < len(before) or self.start <= _BEFORE_LIMIT
        return self.start - len(line) if is_whole and _LINE_BEFORE.fullmatch(line) else None


def find_assigned(text: str, projection: bytes) -> Iterator[Edit]:
    """The secrets of a text, from left to right.

    Args:
        text: What is searched.
        projection: The same, as `search.project` has it.
    """
    position = 0
    while (found := _search.next(projection, position)) is not None:
        _, start, position = found
        name = _NAME.match(text, start)
        tail = _TAIL.match(text, name.end()) if name else None
        if name is None or tail is None:
            continue
        assert tail.lastgroup is not None
        position = tail.end() if tail.lastgroup in ("assigned", "paired") else name.end() + 1
        name_start = _start_of_name(text, start)
        for edit in _find(text, name_start, name.end(), tail):
            position = max(position, edit.end)
            yield edit


def _find(text: str, start: int, end: int, tail: re.Match[str]) -> Iterator[Edit]:
    name = text[start:end]
    if tail.lastgroup == "assigned" and (found := find_in_header(text, name.strip("-"), tail.end())) is not None:
        yield from found
        return
    strength = rate_name(name)
    if strength is None:
        return
    if "/" in name:
        strength = Strength.WEAK  # a path, perhaps to a file that holds it
    assert tail.lastgroup is not None
    named = _Named(text, start, end, strength, tail)
    value = _READERS[tail.lastgroup](named)
    while value is not None:
        yield Edit(value.start, value.end)
        changed = _CHANGED.match(text, value.end)
        value = read_value(text, changed.end()) if changed else None


def _start_of_name(text: str, start: int) -> int:
    limit = max(0, start - _NAME_LIMIT)
    while start > limit and text[start - 1] in _NAME_CHARS:
        start -= 1
    return start


def _read_assigned(named: _Named) -> Value | None:
    text, position = named.text, named.tail.end()
    line_start = named.line_start
    if heading := _DATA_HEADING.match(text, position):  # as `kubectl describe configmap` shows it
        value = read_value(text, heading.end())
    else:
        value = read_value(text, position, line_start=line_start)
    return None if value is None else _secret_part(text, value, named.strength)


def _secret_part(text: str, value: Value, strength: Strength) -> Value | None:
    content = text[value.start : value.end]
    if MASK in content:
        return _with_rest_of_masked(content, value)
    if value.is_block:
        words = content.split()
        is_some = strength is Strength.STRONG or any(map(looks_random, words))
        return value if is_some and not is_prose(content, is_quoted=True) else None
    if " " in content.strip() and is_prose(content, is_quoted=value.is_quoted):
        word = content.split()[0]
        return Value(value.start, value.start + len(word)) if is_made_up(word) else None
    if is_secret(content, strength, is_quoted=value.is_quoted):
        return value
    if " " in content and not value.is_quoted and strength is not Strength.STRONG:
        word = content.split()[0]
        if is_secret(word, strength):
            return Value(value.start, value.start + len(word))
    return None


def _with_rest_of_masked(content: str, value: Value) -> Value | None:
    """The whole value, when a part of it was masked for its form and the rest may be a part of the secret."""
    rest = content.replace(MASK, "")
    return value if " " not in content and "://" not in content and len(re.findall(r"\w", rest)) > 3 else None


def _read_paired(named: _Named) -> Value | None:
    """`name: X` and beside it `value: Y`."""
    if not _NAMED.search(named.before):
        return None
    text, tail = named.text, named.tail
    line_start = text.rfind("\n", tail.start(), tail.end()) + 1
    value = read_value(text, tail.end(), line_start=line_start or None)
    return None if value is None else _secret_part(text, value, named.strength)


def _read_listed(named: _Named) -> Value | None:
    """`("password", "x")`, and no list of words such as `["secret", "token"]`."""
    if named.text[named.start - 1 : named.start] not in ("'", '"'):
        return None
    value = read_value(named.text, named.tail.end() - _length_of_quote(named.tail[0]))
    if value is None:
        return None
    content = named.text[value.start : value.end]
    return value if is_secret(content, named.strength, is_quoted=True) and _is_no_word(content) else None


def _read_called(named: _Named) -> Value | None:
    """`setPassword("x")`, but not `get_secret("name")`."""
    if _READING.match(re.split(r"[.\->:]", named.name)[-1]):
        return None
    value = read_value(named.text, named.tail.end() - _length_of_quote(named.tail[0]))
    if value is None:
        return None
    content = named.text[value.start : value.end]
    return value if is_secret(content, named.strength, is_quoted=True) and not is_prose(content) else None


def _read_posted(named: _Named) -> Value | None:
    """A field of a form, as `multipart/form-data` has it."""
    run = re.compile(r"[^\r\n]+").match(named.text, named.tail.end())
    if run is None or not named.before.endswith(('name="', "name='")):
        return None
    return Value(*run.span()) if is_secret(run[0], named.strength, is_quoted=True) else None


def _read_tagged(named: _Named) -> Value | None:
    """`<password>x</password>`, `<entry key="password">x</entry>`."""
    return _read_element(named, named.tail.end())


def _read_element(named: _Named, position: int) -> Value | None:
    text = named.text
    end = text.find("<", position, position + _TAG_LIMIT)
    if end < 0 or not text.startswith("</", end):
        return None
    while position < end and text[position].isspace():
        position += 1
    while position < end and text[end - 1].isspace():
        end -= 1
    content = text[position:end]
    is_some = is_secret(content, named.strength, is_quoted=True) and not is_prose(content)
    return Value(position, end) if is_some else None


def _read_followed(named: _Named) -> Value | None:
    """`--password x`, `ENV PASSWORD x`, `login bob password x`, `the password is x1`, `password "x"`."""
    text, strength = named.text, named.strength
    before = named.before
    if before.endswith(("<", "</")):
        tag = _OPEN_TAG.match(text, named.end)
        return _read_element(named, tag.end()) if tag else None
    connector = _CONNECTOR.match(text, named.end)
    if connector is None:
        return None
    is_flag = named.name.startswith("-")
    is_command = is_flag or _SHELL.search(before) or (strength is Strength.STRONG and _LOGIN.search(before))
    is_column = "  " in connector[0] or "\t" in connector[0]
    value = read_value(text, connector.end())
    if value is None or text[value.start] == "-":
        return None
    content = text[value.start : value.end]
    if MASK in content or not is_secret(content, strength, is_quoted=value.is_quoted):
        return None
    if is_command:
        return value
    if value.is_quoted:
        return value if not is_prose(content) else None
    if is_column and named.line_start is None:
        return None
    return value if is_made_up(content) else None


def _is_no_word(content: str) -> bool:
    return looks_random(content) or is_made_up(content)


def _length_of_quote(tail: str) -> int:
    """How much of the tail is the value's opening quote, which `read_value` wants to see."""
    opening = re.search(r"\\*[\"'`]$", tail)
    return len(opening[0]) if opening else 0


_READERS: dict[str, Callable[[_Named], Value | None]] = {
    "assigned": _read_assigned,
    "paired": _read_paired,
    "listed": _read_listed,
    "called": _read_called,
    "tagged": _read_tagged,
    "posted": _read_posted,
    "followed": _read_followed,
}

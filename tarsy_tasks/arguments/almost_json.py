"""JSON, and the almost-JSON that models write.

Owns two readers. `read_json` is the standard library's, made exact and finite. `read_almost_json` takes what has
exactly one sensible reading: other quotes, bare keys and words, Python's literals, comments, trailing commas, raw
newlines, stray escapes. It never closes what was cut off, never drops a value and never invents one; it knows no
schema. Both are linear in the text."""

import json
import re
from typing import Any

from tarsy_tasks.arguments.values import MAX_DEPTH, Written, read_scalar

__all__ = ["NotJsonError", "read_almost_json", "read_json", "read_json_as_written", "read_json_at"]


class NotJsonError(Exception):
    """The text is not JSON, or almost-JSON with one reading. The argument says why, for a model."""


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise NotJsonError(f"{text[:20]} is too large for a number")
    return value


def _no_constant(text: str) -> Any:
    raise NotJsonError(f"{text} is no JSON")


def _written_float(text: str) -> Written:
    return Written(_finite(text), text)


_STRICT = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
_AS_WRITTEN = json.JSONDecoder(parse_float=_written_float, parse_constant=_no_constant)
_LOOSE = json.JSONDecoder(strict=False)
# Whole strings are one token each; the closing quote is optional so that no quote is ever looked at twice.
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)


def read_json(text: str) -> Any:
    """The value of a text that is JSON (RFC 8259), with integers exact.

    Raises:
        NotJsonError: It is not, or holds a number that is not finite, or is nested too deep.
    """
    return _decode(_STRICT, text)


def read_json_as_written(text: str) -> Any:
    """As `read_json`, with every float as a `Written`: the text `1.10` must not become `1.1`."""
    return _decode(_AS_WRITTEN, text)


def _decode(decoder: json.JSONDecoder, text: str) -> Any:
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise NotJsonError(f"it is nested deeper than {MAX_DEPTH} levels")
    try:
        return decoder.decode(text)
    except json.JSONDecodeError as error:
        raise NotJsonError(f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.pos}") from None
    except ValueError:
        raise NotJsonError("an integer has more digits than can be handled; write it as a text") from None


def _depth(text: str) -> int:
    depth = deepest = 0
    for token in _BRACKETS.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first != '"':
            depth -= 1
    return deepest


def read_almost_json(text: str) -> tuple[Any, tuple[str, ...]]:
    """The value of a text that is JSON but for the habits of models, and the repairs that were needed.

    Leaves whose spelling matters are `Written`. Brackets, commas and semicolons too many at the end are skipped.

    Raises:
        NotJsonError: There is no reading, or more than one.
    """
    reader = _Reader(text)
    value, end = reader.value(reader.skip(0), 0)
    end = reader.skip(end)
    if end < len(text):
        if _TAIL.fullmatch(text, end) is None:
            raise NotJsonError(f"it goes on after its end, at character {end}")
        reader.repairs["extra_closing"] = None
    return value, tuple(reader.repairs)


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """The list or object that begins at `start`, read as `read_almost_json` does, and where it ends.

    Raises:
        NotJsonError: There is none.
    """
    return _Reader(text).value(start, 0)


_SKIP = re.compile(r"(?:[\s\ufeff\u200b]++|//[^\n]*+|#[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/)*+")
_TAIL = re.compile(r"[\s}\];,]*+")
_KEY = re.compile(r"[^\W\d][\w$.-]*+")
_BARE = re.compile(r"[\w.+\-/@%*$]++")
_ELLIPSIS = re.compile(r"\.\.\.|…")
_QUOTED = {
    '"""': re.compile(r'((?:[^"\\]++|\\.|"(?!""))*+)"""', re.DOTALL),
    "'''": re.compile(r"((?:[^'\\]++|\\.|'(?!''))*+)'''", re.DOTALL),
    '"': re.compile(r'([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL),
    "'": re.compile(r"([^'\\]*+(?:\\.[^'\\]*+)*+)'", re.DOTALL),
    "`": re.compile(r"([^`\\]*+(?:\\.[^`\\]*+)*+)`", re.DOTALL),
    "“": re.compile(r"([^“”\\]*+(?:\\.[^“”\\]*+)*+)”", re.DOTALL),
    "„": re.compile(r"([^„“”\\]*+(?:\\.[^„“”\\]*+)*+)[“”]", re.DOTALL),
    "‘": re.compile(r"([^‘’\\]*+(?:\\.[^‘’\\]*+)*+)’", re.DOTALL),
}
_QUOTE_REPAIRS = {
    "'": "single_quotes",
    '"""': "other_quotes",
    "'''": "other_quotes",
    "`": "other_quotes",
    "“": "smart_quotes",
    "„": "smart_quotes",
    "‘": "smart_quotes",
}
_QUOTE = re.compile("\"\"\"|'''|[\"'`“„‘]")
_CONTROL = re.compile(r"[\x00-\x1f]")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LITERALS = {"true", "false", "null"}


class _Reader:
    """One pass over one text. Methods take a position and return the position after what they read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.repairs: dict[str, None] = {}

    def skip(self, at: int) -> int:
        found = _SKIP.match(self.text, at)
        end = found.end() if found else at
        if end > at and (self.text.find("/", at, end) >= 0 or self.text.find("#", at, end) >= 0):
            self.repairs["comment"] = None
        return end

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        first = self.text[at : at + 1]
        if first in ("{", "[") and depth >= MAX_DEPTH:
            raise NotJsonError(f"it is nested deeper than {MAX_DEPTH} levels")
        if first == "{":
            return self._object(at + 1, depth + 1)
        if first == "[":
            return self._array(at + 1, depth + 1)
        if quote := _QUOTE.match(self.text, at):
            return self._string(quote[0], at)
        return self._word(at)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        at = self.skip(at)
        while self.text[at : at + 1] != "}":
            key, at = self._key(at)
            at = self.skip(at)
            if self.text[at : at + 1] != ":":
                raise self._unexpected(at, "a colon after the key")
            members[key], end = self.value(self.skip(at + 1), depth)
            at = self.skip(end)
            at = self._next(at, end, "}")
        return members, at + 1

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = self.skip(at)
        while self.text[at : at + 1] != "]":
            item, end = self.value(at, depth)
            items.append(item)
            at = self._next(self.skip(end), end, "]")
        return items, at + 1

    def _next(self, at: int, value_end: int, closing: str) -> int:
        """Past the comma to the next member, or to the closing bracket."""
        here = self.text[at : at + 1]
        if here == closing:
            return at
        if here == ",":
            after = self.skip(at + 1)
            if self.text[after : after + 1] == closing:
                self.repairs["trailing_comma"] = None
            return after
        # In a list, two strings side by side may also be one: Python joins them.
        if closing == "}" and at > value_end and here in ('"', "'"):
            self.repairs["missing_comma"] = None
            return at
        raise self._unexpected(at, f'"," or "{closing}"')

    def _key(self, at: int) -> tuple[str, int]:
        if quote := _QUOTE.match(self.text, at):
            return self._string(quote[0], at)
        key = _KEY.match(self.text, at)
        if key is None:
            raise self._unexpected(at, "a key")
        self.repairs["bare_key"] = None
        return key[0], key.end()

    def _word(self, at: int) -> tuple[Any, int]:
        word = _BARE.match(self.text, at)
        if word is None or _ELLIPSIS.match(self.text, at) or word[0] == "undefined":
            raise self._unexpected(at, "a value")
        text = word[0]
        value = read_scalar(text)
        if isinstance(value, str):
            self.repairs["bare_word"] = None
        elif (value is None or value is True or value is False) and text not in _LITERALS:
            self.repairs["python_literal"] = None
        return Written(value, text), word.end()

    def _string(self, quote: str, at: int) -> tuple[str, int]:
        found = _QUOTED[quote].match(self.text, at + len(quote))
        if found is None:
            raise NotJsonError(f"the text that begins at character {at} has no closing quote")
        if quote != '"':
            self.repairs[_QUOTE_REPAIRS[quote]] = None
        return self._unescaped(found[1], quote), found.end()

    def _unescaped(self, content: str, quote: str) -> str:
        if quote == '"' and _CONTROL.search(content):
            self.repairs["raw_newline"] = None
        if "\\" not in content:
            return content
        if quote == '"':
            try:
                return _LOOSE.decode(f'"{content}"')
            except json.JSONDecodeError:
                pass
        kept: list[str] = []
        meant: list[str] = []

        def replace(found: re.Match[str]) -> str:
            escape = found[1]
            if escape in "\\/\"'`“”":
                return escape
            if escape in _ESCAPES:
                meant.append(escape)
                return _ESCAPES[escape]
            if escape[0] == "u" and len(escape) > 1:
                meant.append(escape)
                return chr(int(escape[1:], 16))
            if escape in "xuUN01234567av":
                raise NotJsonError(f'the escape "\\{escape}" is no JSON')
            kept.append(escape)
            return f"\\{escape}"

        result = _ESCAPE.sub(replace, content)
        if kept and meant:
            # "C:\new\data": who did not escape \d may not have escaped \n either.
            raise NotJsonError(f'"\\{kept[0]}" is no JSON escape, so "\\{meant[0]}" may mean two things; write "\\\\"')
        if kept:
            self.repairs["stray_backslash"] = None
        # Halves of a character that were escaped one by one belong together.
        return result.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if meant else result

    def _unexpected(self, at: int, expected: str) -> NotJsonError:
        if at >= len(self.text):
            return NotJsonError(f"it is cut off: {expected} is missing at its end")
        return NotJsonError(f"expected {expected} at character {at}, found {self.text[at : at + 12]!r}")

"""JSON, and the almost-JSON that models write.

Owns two readers, both linear in the text. `read_json` is the standard library's, made exact and finite.
`read_almost_json` also accepts what has exactly one sensible reading: other quotes, bare keys and words, Python
literals, comments, trailing commas, raw newlines, stray escapes. It never closes what was cut off, and never drops or
invents a value. It knows no schema.
"""

import json
import re
from typing import Any

from tarsy_tasks.arguments.values import MAX_DEPTH, Written, plain, read_scalar, safe_copy

__all__ = ["NotJsonError", "is_too_deep", "read_almost_json", "read_json", "read_json_as_written", "read_json_at"]


class NotJsonError(Exception):
    """The text is neither JSON nor almost-JSON with one reading. The argument says why, in words for a model."""


def _cut_off(text: str) -> NotJsonError:
    kind = {"[": "list", '"': "string"}.get(text.lstrip()[:1], "object")
    return NotJsonError(f"the text ends before the {kind} is closed")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise NotJsonError(f"the number {text[:20]} is too large")
    return value


def _no_constant(text: str) -> Any:
    raise NotJsonError(f"{text} is not valid in JSON")


_STRICT = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
_REPAIRED = json.JSONDecoder(parse_float=lambda text: Written(read_scalar(text), text))
_AS_WRITTEN = json.JSONDecoder(parse_float=lambda text: Written(_finite(text), text), parse_constant=_no_constant)
_LOOSE = json.JSONDecoder(strict=False)
# Whole strings are one token each; the closing quote is optional so that no quote is ever looked at twice.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_BRACKETS = re.compile(rf"{_STRING}|[\[{{]|[\]}}]", re.DOTALL)
_NO_BRACKETS = re.compile(rf'{_STRING}|[^\[\]{{}}"]++', re.DOTALL)
_MAX_PASSES = 4
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(text: str) -> Any:
    """The value of a JSON text (RFC 8259), with exact integers.

    Raises:
        NotJsonError: It is not JSON, or contains a number that is not finite, or is nested too deep.
        ArgumentsError: It contains half of a character.
    """
    return _decode(_STRICT, text)


def read_json_as_written(text: str) -> Any:
    """As `read_json`, with every float as a `Written`: the text `1.10` must not become `1.1`."""
    return _decode(_AS_WRITTEN, text)


def _decode(decoder: json.JSONDecoder, text: str) -> Any:
    value, end = _decode_start(decoder, text, text)
    if end < len(text):
        raise NotJsonError(f"there is more text after its end, at character {end}")
    return value


_WORDS = {
    "Expecting ','": "a comma or a quote is missing",
    "Expecting ':'": "a colon is missing",
    "Expecting value": "a value is missing",
    "Expecting property": "a key is missing",
    "Invalid control": "a line break in a string is not escaped",
    "Invalid \\": "a backslash is not escaped",
}


def _decode_start(decoder: json.JSONDecoder, text: str, original: str) -> tuple[Any, int]:
    if is_too_deep(text):
        raise NotJsonError(f"it is nested more than {MAX_DEPTH} levels deep")
    try:
        value, end = decoder.raw_decode(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            raise _cut_off(text) from None
        word = next((word for begin, word in _WORDS.items() if error.msg.startswith(begin)), "it cannot be read")
        near = text[max(error.pos - 12, 0) : error.pos + 12]
        # Text that was repaired is not what the model wrote.
        shown = f" near {near!r}" if near in original else ""
        raise NotJsonError(f"{word}{shown}") from None
    except ValueError:
        raise NotJsonError("an integer has too many digits; write it as a string") from None
    if _HALF.search(text):
        safe_copy(plain(value))  # half a character must not reach the validator or the server
    return value, end


def is_too_deep(text: str) -> bool:
    """Whether the first value is nested too deep: decoders in C recurse on the C stack."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    brackets = _NO_BRACKETS.sub("", text)
    for _ in range(_MAX_PASSES):  # cheap, and enough for what is long but not deep
        brackets = brackets.replace("[]", "").replace("{}", "")
    if len(brackets) <= MAX_DEPTH:
        return False
    depth = 0
    for token in _BRACKETS.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first != '"':
            depth -= 1
            if depth <= 0:
                return False
    return False


def read_almost_json(text: str) -> tuple[Any, tuple[str, ...]]:
    """The value of a text that is JSON except for habits of models, and the repairs that were needed.

    Numbers whose spelling matters are `Written`. Extra brackets, commas and semicolons at the end are skipped.

    Raises:
        NotJsonError: There is no reading, or more than one.
    """
    if not _CLOSED.search(text[-_TAIL_CHARS:]) and "/" not in text and "#" not in text:
        opened, closed = (sum(map(text.count, brackets)) for brackets in ("{[", "}]"))
        raise _cut_off(text) if opened > closed else NotJsonError("there is more text after its end")
    repair = _Repair()
    repaired = _HABITS.sub(repair, text).lstrip()
    value, end = _decode_start(_REPAIRED, repaired, text)
    if end < len(repaired):
        if _TAIL.fullmatch(repaired, end) is None:
            raise NotJsonError(f"there is more text after its end: {repaired[end : end + 20].strip()!r}")
        if repaired[end:].strip():
            repair.done["extra_closing"] = None
    return value, tuple(repair.done)


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """The list or object that begins at `start`, read as `read_almost_json` does, and where it ends.

    Raises:
        NotJsonError: There is none.
    """
    depth = 0
    for token in _BRACKETS.finditer(text, start):
        first = text[token.start()]
        if first in "[{":
            depth += 1
        elif first != '"':
            depth -= 1
        if depth == 0:
            return read_almost_json(text[start : token.end()])[0], token.end()
        if depth > MAX_DEPTH:
            break
    raise _cut_off(text[start:])


_TAIL_CHARS = 200
_CLOSED = re.compile(r"[}\]][\s}\];,]*\Z")
_TAIL = re.compile(r"[\s}\];,]*+")
_COLON = re.compile(r"\s*+:")
_WORD = r"[\w.+\-/@%*$]"
_NUMBER_OR_LITERAL = r"(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null)"
_COMMENT = r"//[^\n]*+|\#[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?"
# Each kind of token that JSON does not have, or not in this way. A text in quotes is one token even when its closing
# quote is missing, and words begin only where no word went before: no character is looked at more than a few times.
_HABITS = re.compile(
    rf"""
      (?P<gap>\s(?<![\s,{{\[:]\s)\s*+(?=["'][^"'\\\n]{{0,100}}+["']\s*+:))
    | (?P<comma>,(?=(?:\s++|{_COMMENT})*+[}}\]]))
    | (?P<space>[\ufeff\u200b\u00a0\u2000-\u200a\u202f\u3000\f\v]++)
    | (?![\s,:\[\]{{}}])(?:  # most characters are tried no further
          (?P<run>(?<!{_WORD})(?:(?:0|[1-9][0-9]*+),[ ]?(?=[0-9]))++)  # integers: nothing to repair
        | (?P<triple>\"\"\"(?P<in_triple>(?:[^"\\]++|\\.|"(?!""))*+)(?P<end_triple>\"\"\")?)
        | (?P<double>"(?P<in_double>[^"\\]*+(?:\\.[^"\\]*+)*+)(?P<end_double>")?)
        | (?P<single>'(?P<in_single>[^'\\]*+(?:\\.[^'\\]*+)*+)(?P<end_single>')?)
        | (?P<back>`(?P<in_back>[^`\\]*+(?:\\.[^`\\]*+)*+)(?P<end_back>`)?)
        | (?P<smart>[“„](?P<in_smart>[^„“”\\]*+(?:\\.[^„“”\\]*+)*+)(?P<end_smart>[“”])?)
        | (?P<curly>‘(?P<in_curly>[^‘’\\]*+(?:\\.[^‘’\\]*+)*+)(?P<end_curly>’)?)
        | (?P<comment>{_COMMENT})
        | (?P<word>(?<!{_WORD})(?!{_NUMBER_OR_LITERAL}(?!{_WORD})){_WORD}++)
        | (?P<stray>[=()<>&|!?^~\\])
      )
    """,
    re.DOTALL | re.VERBOSE,
)
_QUOTES = {
    "double": "",
    "triple": "other_quotes",
    "single": "single_quotes",
    "back": "other_quotes",
    "smart": "smart_quotes",
    "curly": "smart_quotes",
}
_LITERALS: dict[bool | None, str] = {True: "true", False: "false", None: "null"}
_SPECIAL = re.compile(r'["\\\x00-\x1f]')
_ESCAPED = re.compile(r"[\\\x00-\x1f]")
_CONTROL = re.compile(r"[\x00-\x1f]")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class _Repair:
    """Replaces each token with its JSON form; `done` has a word for each kind of repair."""

    def __init__(self) -> None:
        self.done: dict[str, None] = {}

    def __call__(self, token: re.Match[str]) -> str:
        kind = token.lastgroup
        if kind in _QUOTES:
            return self._string(token, kind)
        if kind == "word":
            return self._word(token)
        return token[0] if kind == "run" else self._sign(token, kind)

    def _string(self, token: re.Match[str], kind: str) -> str:
        content = token[f"in_{kind}"]
        if token[f"end_{kind}"] is None:
            raise NotJsonError(f"the string {token[0][:20]!r} has no closing quote")
        if repair := _QUOTES[kind]:
            self.done[repair] = None
        special, quote = (_ESCAPED, '"') if kind == "double" else (_SPECIAL, '"' if kind == "triple" else "'")
        return json.dumps(self._unescaped(content, quote)) if special.search(content) else f'"{content}"'

    def _word(self, token: re.Match[str]) -> str:
        text = token[0]
        if _COLON.match(token.string, token.end()):
            self.done["bare_key"] = None
            return f'"{text}"'
        if "..." in text or text == "undefined":
            raise NotJsonError(f"{text[:20]!r} is not a value")
        value = read_scalar(text)
        if isinstance(value, str):
            self.done["bare_word"] = None
            return f'"{text}"'
        self.done["python_literal"] = None
        return _LITERALS[value] if value is None or isinstance(value, bool) else repr(value)

    def _sign(self, token: re.Match[str], kind: str | None) -> str:
        if kind == "space":
            return " "
        if kind == "stray":
            raise NotJsonError(f"unexpected {token[0]!r}")
        if kind == "comma":
            self.done["trailing_comma"] = None
            return ""
        if kind == "comment":
            if token[0].startswith("/*") and not token[0].endswith("*/"):
                raise NotJsonError("a comment has no `*/`")
            self.done["comment"] = None
            return " "
        # After a comment, there may already be a comma before it.
        if token.start() == 0 or "comment" in self.done:
            return " "
        self.done["missing_comma"] = None
        return ", "

    def _unescaped(self, content: str, quote: str) -> str:
        if quote == '"' and _CONTROL.search(content):
            self.done["raw_newline"] = None
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
                raise NotJsonError(f'the escape "\\{escape}" is not valid in JSON')
            kept.append(escape)
            return f"\\{escape}"

        result = _ESCAPE.sub(replace, content)
        if kept and meant:
            # "C:\new\data": the writer did not escape \d, and perhaps \n is not an escape either.
            raise NotJsonError(
                f'"\\{kept[0]}" is not a JSON escape, so "\\{meant[0]}" is ambiguous; write each backslash as "\\\\"'
            )
        if kept:
            self.done["stray_backslash"] = None
        # Halves of a character that were escaped one by one belong together.
        return result.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if meant else result

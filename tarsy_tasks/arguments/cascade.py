"""The order in which a text is tried as arguments.

1. Nothing; 2. a JSON value; 3. what is left when a model token or a sure label is removed, from the start; 4. JSON or
almost-JSON inside wrappings; 5. YAML; 6. pairs; 7. a plain text. A text that begins as JSON is never read as 5 or 6.

The principle: **an object that a model wrote is used as it is; a guess must fit the schema; a text with two readings is
rejected.** A rejection costs a model one more turn, a wrong call may cost more. No I/O, no knowledge of servers and
tools.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from tarsy_tasks.arguments.almost_json import NotJsonError, read_almost_json, read_json, read_json_as_written
from tarsy_tasks.arguments.attempts import has_model_token
from tarsy_tasks.arguments.envelope import may_be_envelope
from tarsy_tasks.arguments.pairs import read_pairs
from tarsy_tasks.arguments.reading import ParsedArguments, Reading
from tarsy_tasks.arguments.target import Target
from tarsy_tasks.arguments.values import MAX_DEPTH, SPACE, Written, plain, safe_copy, unusable
from tarsy_tasks.arguments.wrappings import Unwrapped, strip_model_tokens, strip_sure_label, unwrap
from tarsy_tasks.arguments.yaml_text import read_yaml
from tarsy_tasks.errors import ArgumentsError

__all__ = ["read_arguments"]


def read_arguments(given: Any, schema: Mapping[str, Any] | bool | None = None) -> ParsedArguments:
    """Reads the arguments of a call.

    Args:
        given: What the model wrote, or a mapping. None and an empty text are no arguments.
        schema: JSON Schema of the arguments; None when it is not known, and then nothing is checked.

    Raises:
        ArgumentsError: They cannot be read, or do not fit the schema. The text is for a model; nothing was sent.
    """
    try:
        parsed = _read(given, None if schema is None else Target(schema))
    except RecursionError:
        raise unusable("They are nested too deeply.") from None
    if given.__class__ is str and not _may_be_too_deep(cast("str", given)):
        return parsed
    return ParsedArguments(safe_copy(parsed.arguments), parsed.reading, parsed.repairs)


def _may_be_too_deep(text: str) -> bool:
    """Whether decoding a text twice could give a value that is too deep; a bracket may be written `\\u005b`."""
    return "\\u" in text or text.count("[") + text.count("{") > MAX_DEPTH


def _read(given: Any, target: Target | None) -> ParsedArguments:
    if given is None:
        given = ""
    if isinstance(given, Mapping):
        arguments = safe_copy(dict(cast("Mapping[Any, Any]", given)))
        return _object(arguments, lambda: arguments, Reading.MAPPING, (), target)
    if not isinstance(given, str):
        raise unusable(f"They have the type {type(given).__name__}; write a JSON object.")
    if not given.isascii():
        safe_copy(given)
    return _read_text_of_model(given, target, ())


def _read_text_of_model(given: str, target: Target | None, repairs: tuple[str, ...]) -> ParsedArguments:
    """The whole cascade. It runs again on the text without a model token or a sure label; each is removed once."""
    text = given.strip(SPACE)
    if not text:
        return _object({}, dict, Reading.EMPTY, (), target)
    try:
        value = read_json(text)
    except NotJsonError as error:
        for word, strip in (("model_token", strip_model_tokens), ("label", strip_sure_label)):
            if word not in repairs and (inner := strip(given.lstrip(SPACE) if word == "label" else given)) is not None:
                try:
                    parsed = _read_text_of_model(inner, target, (*repairs, word))
                except ArgumentsError as refused:
                    raise ArgumentsError(refused.code, refused.text, (word, *refused.repairs)) from None
                return ParsedArguments(parsed.arguments, parsed.reading, (word, *parsed.repairs))
        return _read_unwrapped(given, str(error), target)
    if isinstance(value, dict):
        return _object(cast("dict[str, Any]", value), lambda: read_json_as_written(text), Reading.JSON, (), target)
    return _read_value(text, value, target)


_MAX_DECODINGS = 3


def _read_value(text: str, value: Any, target: Target | None) -> ParsedArguments:
    inner, decodings = value, 0
    while isinstance(inner, str) and inner.lstrip(SPACE)[:1] in ("{", '"', "`") and decodings < _MAX_DECODINGS:
        decodings += 1
        try:
            opened = unwrap(inner, ())
            inner, repairs = _read_object(Unwrapped(opened.text, ("double_encoded", *opened.repairs)))
        except NotJsonError:
            break
        if isinstance(plain(inner), dict):
            return _object(plain(inner), lambda tree=inner: tree, Reading.ALMOST_JSON, repairs, target)
    if target is None:
        return ParsedArguments({"input": value}, Reading.VALUE)
    return target.value(text, value)


def _read_object(unwrapped: Unwrapped) -> tuple[Any, tuple[str, ...]]:
    """The JSON or almost-JSON inside wrappings, with `Written` leaves, and all repairs."""
    if unwrapped.repairs:  # else it is known not to be JSON
        with suppress(NotJsonError):
            return read_json_as_written(unwrapped.text), unwrapped.repairs
    tree, repairs = read_almost_json(unwrapped.text)
    return tree, (*unwrapped.repairs, *repairs)


_MEMBER = re.compile(r'"[^"\n\\]{1,80}"[ \t]*:')
_STRICT_REPAIRS = {
    "single_quotes",
    "smart_quotes",
    "trailing_comma",
    "python_literal",
    "comment",
    "code_fence",
    "label",
}


def _read_unwrapped(given: str, reason: str, target: Target | None) -> ParsedArguments:
    names = target.properties if target else {}
    unwrapped = unwrap(given, names)
    text = unwrapped.text.lstrip(SPACE)
    if text.startswith(("{", "[")) or _MEMBER.match(text):
        braces = Unwrapped(f"{{{text}}}", (*unwrapped.repairs, "missing_braces")) if text.startswith('"') else unwrapped
        try:
            tree, repairs = _read_object(Unwrapped(braces.text.strip(SPACE), braces.repairs))
        except NotJsonError as error:
            reason = str(error)
        else:
            parsed = _structure(given, tree, repairs, unwrapped, target)
            if parsed is not None:
                return parsed
    if not text.startswith(("{", "[")) and not unwrapped.is_code and not unwrapped.prose:
        parsed = _read_guesses(given, unwrapped, target)
        if parsed is not None:
            return parsed
    return _read_text(given, unwrapped, reason, target)


def _structure(
    given: str, tree: Any, repairs: tuple[str, ...], unwrapped: Unwrapped, target: Target | None
) -> ParsedArguments | None:
    value = plain(tree)
    reading = Reading.ALMOST_JSON if set(repairs) - set(unwrapped.repairs) else Reading.JSON
    if isinstance(value, dict):
        if not unwrapped.prose:
            return _object(cast("dict[str, Any]", value), lambda: tree, reading, repairs, target)
        # An object inside a text becomes the arguments only if it fits; else the whole text may be the value.
        return target.fitted(cast("dict[str, Any]", value), tree, reading, repairs) if target else None
    if isinstance(value, list) and set(repairs) <= _STRICT_REPAIRS and not unwrapped.prose:
        if target is None:
            return ParsedArguments({"input": value}, Reading.VALUE, repairs)
        return target.value(given, value)
    return None


def _read_guesses(given: str, unwrapped: Unwrapped, target: Target | None) -> ParsedArguments | None:
    if has_model_token(unwrapped.text):
        return None
    names = target.properties if target else {}
    named: dict[str, Any] = {}
    as_read, doubt = Reading.PAIRS, None
    # A block of text ends with a newline if one was written; in a fence there always is one.
    ends_line = unwrapped.language is not None or given.rstrip(" \t").endswith("\n")
    readers: tuple[tuple[Reading, Callable[[], dict[str, Any] | None]], ...] = (
        (Reading.YAML, lambda: read_yaml(unwrapped.text + "\n" * ends_line)),
        (Reading.PAIRS, lambda: read_pairs(unwrapped.text, names)),
    )
    for reading, read in readers:
        tree = read()
        if tree is None:
            continue
        if target is None:
            return ParsedArguments(plain(tree), reading, unwrapped.repairs)
        if target.takes_anything and may_be_envelope(tree) and _find_doubt(tree, names) is None:
            parsed = target.object(plain(tree), lambda tree=tree: tree, reading, unwrapped.repairs)
            return None if "unchecked" in parsed.repairs else parsed
        if target.takes_anything or (names and all(name in names for name in tree)):
            parsed = target.fitted(plain(tree), tree, reading, unwrapped.repairs)
            doubt = _find_doubt(tree, names)
            if parsed is not None and doubt is None:
                return parsed
        if any(name in names for name in tree):
            named, as_read = plain(tree), reading
    if target and named:
        raise target.refused(doubt, named, (as_read.value, *unwrapped.repairs))
    return None


def _find_doubt(tree: dict[str, Any], names: Mapping[str, Any]) -> str | None:
    """The two readings of a bare value whose end is unclear, as in `namespace=a; limit=5`."""
    ends = [value.text.endswith(";") for value in tree.values() if isinstance(value, Written)]
    if len(ends) > 1 and all(ends):
        return "Ambiguous: does the semicolon end each value, or is it part of the value?"
    for key, value in tree.items() if names else ():
        text, shown = getattr(value, "text", ""), f"Ambiguous: does `{key[:60]}` end before"
        ends = ("{}", "[]", "()") if text.endswith(("}", "]", ")")) else ()
        if any(text.count(end) > text.count(begin) for begin, end in ends):
            return f"{shown} the last bracket, or is the bracket part of the value?"
        if " # " in text:
            return f"{shown} the `#` (a comment), or is that part of the value?"
        pieces = [piece.strip() for piece in text.split(",")[1:]] if "," in text else []
        inner = [found[1] for found in _INNER_PAIR.finditer(text)]
        if other := next((name for name in (*pieces, *inner) if name in names), None):
            return f"{shown} `{other[:60]}`, which is also a property, or is that part of the value?"
    return None


_INNER_PAIR = re.compile(r"(?:[;&|]|\s)[ \t]*[\"']?([^\W\d][\w.-]*+)[\"']?[ \t]*[:=](?![=~/:])")


def _read_text(given: str, unwrapped: Unwrapped, reason: str, target: Target | None) -> ParsedArguments:
    whole = unwrap(given, ()) if unwrapped.prose else unwrapped
    is_stripped = not unwrapped.prose and (unwrapped.is_code or unwrapped.repairs == ("label",))
    text = whole.text if is_stripped else given.strip(SPACE)
    repairs = unwrapped.repairs if is_stripped else ()
    if target is None:
        return ParsedArguments({"input": text}, Reading.TEXT, repairs)
    if not unwrapped.text.startswith(("{", "[", '"')):
        reason = "it is not JSON, YAML or `key: value` pairs"
    fenced = unwrapped.language is not None and not unwrapped.is_code and not unwrapped.prose
    if (
        fenced
        and unwrapped.language in ("yaml", "yml")
        and (read_yaml(unwrapped.text) or read_pairs(unwrapped.text, ()))
    ):
        # The fence holds YAML as it says, but not the arguments: a manifest is the value.
        return target.text(unwrapped.text, unwrapped.repairs, reason, fenced=False)
    return target.text(_indented(given, text), repairs, reason, fenced=fenced, whole_fence=is_stripped)


def _indented(given: str, text: str) -> str:
    """The text with the indentation of its first line, if it has more lines."""
    before = given[: given.find(text)] if "\n" in text and not given.startswith(text) else ""
    lead = before[before.rfind("\n") + 1 :]
    return f"{lead}{text}" if lead.isspace() else text


def _object(
    arguments: dict[str, Any],
    tree: Callable[[], Any],
    reading: Reading,
    repairs: tuple[str, ...],
    target: Target | None,
) -> ParsedArguments:
    if target is None:
        return ParsedArguments(arguments, reading, repairs)
    return target.object(arguments, tree, reading, repairs)

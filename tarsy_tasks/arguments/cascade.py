"""The order in which a text is tried as arguments, and what a schema has to say about each reading.

Owns the decision: which reading is the call, or that there is none. The principle: **what a model wrote as an object
is taken at its word; what we guess must fit; of two readings neither is sent.** A rejection costs a model one more
turn, a wrong call may cost more. It does no I/O and knows neither servers nor tools."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

from tarsy_tasks.arguments.almost_json import NotJsonError, read_almost_json, read_json, read_json_as_written
from tarsy_tasks.arguments.coercion import coerce
from tarsy_tasks.arguments.pairs import read_pairs, read_yaml
from tarsy_tasks.arguments.rejection import MOST_PROBLEMS, declared, fold, rejection, required_names
from tarsy_tasks.arguments.schema import Problem, Schema, TooCostlyError, compile_schema
from tarsy_tasks.arguments.values import plain, read_scalar, refuse, safe_copy
from tarsy_tasks.arguments.wrappings import Unwrapped, unwrap
from tarsy_tasks.errors import ArgumentsError

__all__ = ["ParsedArguments", "Reading", "read_arguments"]


class Reading(StrEnum):
    """As what the arguments were read."""

    EMPTY = "empty"
    MAPPING = "mapping"
    """No text: the caller gave an object."""
    JSON = "json"
    ALMOST_JSON = "almost_json"
    YAML = "yaml"
    PAIRS = "pairs"
    VALUE = "value"
    """A JSON value that is no object."""
    TEXT = "text"
    """A bare text."""


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """Arguments, and how they came about.

    Attributes:
        arguments: JSON-safe, a copy of its own.
        reading: As what the text was read.
        repairs: A stable word for each kind of mending, in the order of use; empty when there was nothing to mend.
    """

    arguments: dict[str, Any]
    reading: Reading
    repairs: tuple[str, ...] = ()


def read_arguments(
    given: str | Mapping[str, Any] | None, schema: Mapping[str, Any] | bool | None = None
) -> ParsedArguments:
    """Reads the arguments of a call.

    Args:
        given: What the model wrote, or a mapping. None and an empty text are no arguments.
        schema: JSON Schema of the arguments; None when it is not known, and then nothing is checked.

    Raises:
        ArgumentsError: They cannot be read, or do not fit. The text is for a model; nothing was sent.
    """
    try:
        parsed = _read(given, None if schema is None else _Target(schema))
    except RecursionError:
        raise refuse("They are nested too deep.") from None
    if given.__class__ is str and not _may_be_unsafe(cast("str", given)):
        return parsed
    return ParsedArguments(safe_copy(parsed.arguments), parsed.reading, parsed.repairs)


def _may_be_unsafe(text: str) -> bool:
    """Whether something in a text could become half of a character, or too deep by being decoded twice."""
    return not text.isascii() or "\\u" in text or '\\"' in text or text.count("[") + text.count("{") > 16


def _read(given: Any, target: "_Target | None") -> ParsedArguments:
    if given is None:
        given = ""
    if isinstance(given, Mapping):
        arguments = safe_copy(dict(cast("Mapping[Any, Any]", given)))
        return _object(arguments, lambda: arguments, Reading.MAPPING, (), target)
    if not isinstance(given, str):
        raise refuse(f"They are of the type {type(given).__name__}; a JSON object is due.")
    text = given.strip(_SPACE)
    if not text:
        return _object({}, dict, Reading.EMPTY, (), target)
    try:
        value = read_json(text)
    except NotJsonError as error:
        return _read_unwrapped(given, str(error), target)
    if isinstance(value, dict):
        return _object(cast("dict[str, Any]", value), lambda: read_json_as_written(text), Reading.JSON, (), target)
    return _read_value(text, value, target)


_SPACE = " \t\r\n\f\v\ufeff\u200b\u00a0"
_MOST_DECODINGS = 3


def _read_value(text: str, value: Any, target: "_Target | None") -> ParsedArguments:
    inner, decodings = value, 0
    while isinstance(inner, str) and inner.lstrip(_SPACE)[:1] in ("{", '"', "`") and decodings < _MOST_DECODINGS:
        decodings += 1
        try:
            inner, repairs = _read_object(unwrap(inner, ()))
        except NotJsonError:
            break
        if isinstance(plain(inner), dict):
            return _double_encoded(inner, repairs, target)
    if target is None:
        return ParsedArguments({"input": value}, Reading.VALUE)
    return target.value(text, value)


def _double_encoded(tree: Any, repairs: tuple[str, ...], target: "_Target | None") -> ParsedArguments:
    return _object(plain(tree), lambda: tree, Reading.ALMOST_JSON, ("double_encoded", *repairs), target)


def _read_object(unwrapped: Unwrapped) -> tuple[Any, tuple[str, ...]]:
    """The JSON or almost-JSON inside of wrappings, with `Written` leaves, and all repairs."""
    try:
        return read_json_as_written(unwrapped.text), unwrapped.repairs
    except NotJsonError:
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


def _read_unwrapped(given: str, reason: str, target: "_Target | None") -> ParsedArguments:
    names = target.properties if target else {}
    unwrapped = unwrap(given, names)
    text = unwrapped.text.lstrip(_SPACE)
    if text.startswith(("{", "[")) or _MEMBER.match(text):
        braces = Unwrapped(f"{{{text}}}", (*unwrapped.repairs, "missing_braces")) if text.startswith('"') else unwrapped
        try:
            tree, repairs = _read_object(Unwrapped(braces.text.strip(_SPACE), braces.repairs))
        except NotJsonError as error:
            reason = str(error)
        else:
            parsed = _structure(given, tree, repairs, unwrapped, target)
            if parsed is not None:
                return parsed
    if not text.startswith(("{", "[")) and not unwrapped.is_code and not unwrapped.prose:
        parsed = _read_guesses(unwrapped, target)
        if parsed is not None:
            return parsed
    return _read_text(given, unwrapped, reason, target)


def _structure(
    given: str, tree: Any, repairs: tuple[str, ...], unwrapped: Unwrapped, target: "_Target | None"
) -> ParsedArguments | None:
    value = plain(tree)
    reading = Reading.ALMOST_JSON if set(repairs) - set(unwrapped.repairs) else Reading.JSON
    if isinstance(value, dict):
        if not unwrapped.prose:
            return _object(cast("dict[str, Any]", value), lambda: tree, reading, repairs, target)
        # An object inside of a text is the call only if it fits; else the text may be what is meant.
        return target.fitted(cast("dict[str, Any]", value), tree, reading, repairs) if target else None
    if isinstance(value, list) and set(repairs) <= _STRICT_REPAIRS and not unwrapped.prose:
        if target is None:
            return ParsedArguments({"input": value}, Reading.VALUE, repairs)
        return target.value(given, value)
    return None


def _read_guesses(unwrapped: Unwrapped, target: "_Target | None") -> ParsedArguments | None:
    names = target.properties if target else {}
    named: dict[str, Any] = {}
    readers: tuple[tuple[Reading, Callable[[], dict[str, Any] | None]], ...] = (
        (Reading.YAML, lambda: read_yaml(unwrapped.text)),
        (Reading.PAIRS, lambda: read_pairs(unwrapped.text, names)),
    )
    for reading, read in readers:
        tree = read()
        if tree is None:
            continue
        if target is None:
            return ParsedArguments(plain(tree), reading, unwrapped.repairs)
        if (not names and not target.schema.closed) or (names and all(name in names for name in tree)):
            parsed = target.fitted(plain(tree), tree, reading, unwrapped.repairs)
            if parsed is not None and not _hides_pairs(tree, names):
                return parsed
        if any(name in names for name in tree):
            named = plain(tree)
    if target and named:
        raise target.refused("", named)
    return None


def _hides_pairs(tree: dict[str, Any], names: Mapping[str, Any]) -> bool:
    """Whether a bare value goes on with what names another property: `namespace=a; limit=5`."""
    if not names:
        return False
    for value in tree.values():
        for found in _INNER_PAIR.finditer(getattr(value, "text", "")):
            if found[1] in names:
                return True
    return False


_INNER_PAIR = re.compile(r"(?:[;&|]|\s)[ \t]*[\"']?([^\W\d][\w.-]*+)[\"']?[ \t]*[:=](?![=~/:])")


def _read_text(given: str, unwrapped: Unwrapped, reason: str, target: "_Target | None") -> ParsedArguments:
    whole = unwrap(given, ()) if unwrapped.prose else unwrapped
    took_off = not unwrapped.prose and (unwrapped.is_code or unwrapped.repairs == ("label",))
    text = whole.text if took_off else given.strip(_SPACE)
    repairs = unwrapped.repairs if took_off else ()
    if target is None:
        return ParsedArguments({"input": text}, Reading.TEXT, repairs)
    fenced = unwrapped.language is not None and not unwrapped.is_code and not unwrapped.prose
    return target.text(_indented(given, text), repairs, reason, fenced)


def _indented(given: str, text: str) -> str:
    """The text with the indentation of its first line, where further lines depend on it."""
    before = given[: given.find(text)] if "\n" in text and not given.startswith(text) else ""
    lead = before[before.rfind("\n") + 1 :]
    return f"{lead}{text}" if lead.isspace() else text


def _object(
    arguments: dict[str, Any],
    tree: Callable[[], Any],
    reading: Reading,
    repairs: tuple[str, ...],
    target: "_Target | None",
) -> ParsedArguments:
    if target is None:
        return ParsedArguments(arguments, reading, repairs)
    return target.object(arguments, tree, reading, repairs)


_ENVELOPES = {"arguments", "args", "parameters", "params", "input", "kwargs", "tool_input", "action_input", "tool_args"}
_ENVELOPE_NAMES = {
    "name",
    "tool",
    "tool_name",
    "function",
    "function_name",
    "action",
    "id",
    "type",
    "call_id",
    "recipient_name",
}


class _Target:
    """The tool's schema, and what it makes of each reading."""

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        try:
            self.schema = compile_schema(schema if isinstance(schema, dict | bool) else dict(schema))
            self.checked = True
        except TooCostlyError:
            self.schema = Schema()
            self.checked = False
        self._properties: dict[str, Schema] | None = None

    @property
    def properties(self) -> dict[str, Schema]:
        if self._properties is None:
            self._properties = declared(self.schema)
        return self._properties

    def object(
        self, arguments: dict[str, Any], tree: Callable[[], Any], reading: Reading, repairs: tuple[str, ...]
    ) -> ParsedArguments:
        """An object that the model wrote: it fits, can be made to fit, or is refused."""
        try:
            problems = self.schema.problems(arguments, MOST_PROBLEMS)
            if not problems:
                return ParsedArguments(arguments, reading, repairs if self.checked else (*repairs, "unchecked"))
            parsed = self._coerced(tree(), reading, repairs) or self._opened(arguments, reading, repairs)
        except TooCostlyError:
            # The server checks its own arguments; ours would only have been a better message.
            return ParsedArguments(arguments, reading, (*repairs, "unchecked"))
        if parsed is None:
            raise rejection(self.schema, "", problems)
        return parsed

    def fitted(
        self, arguments: dict[str, Any], tree: Any, reading: Reading, repairs: tuple[str, ...]
    ) -> ParsedArguments | None:
        """A guess: it fits, or can be made to fit, or is none."""
        try:
            if self.schema.fits(arguments):
                return ParsedArguments(arguments, reading, repairs) if self.checked else None
            return self._coerced(tree, reading, repairs)
        except TooCostlyError:
            return None

    def _coerced(self, tree: Any, reading: Reading, repairs: tuple[str, ...]) -> ParsedArguments | None:
        changed, changes = coerce(self.schema, tree)
        if changes and isinstance(changed, dict) and self.schema.fits(changed):
            return ParsedArguments(cast("dict[str, Any]", changed), reading, (*repairs, *changes))
        return None

    def _opened(self, arguments: dict[str, Any], reading: Reading, repairs: tuple[str, ...]) -> ParsedArguments | None:
        """The arguments inside of a whole call: `{"name": "pods_list", "arguments": {...}}`."""
        keys = arguments.keys() - _ENVELOPE_NAMES
        if len(keys) != 1 or not keys <= _ENVELOPES or not self.properties.keys().isdisjoint(arguments):
            return None
        inner: Any = arguments[next(iter(keys))]
        others = [value for key, value in arguments.items() if key not in keys]
        if not all(isinstance(value, str) for value in others):
            return None
        if isinstance(inner, str) and inner.lstrip().startswith("{"):
            try:
                inner = read_json_as_written(inner)
            except NotJsonError:
                return None
        if not isinstance(inner, dict):
            return None
        return self.fitted(plain(inner), inner, reading, (*repairs, "whole_call"))

    def value(self, text: str, value: Any) -> ParsedArguments:
        """A JSON value that is no object."""
        if "input" in self.properties or (not self.properties and not self.schema.closed):
            parsed = self.fitted({"input": value}, {"input": value}, Reading.VALUE, ())
            if parsed is not None:
                return parsed
        if value is None:
            parsed = self.fitted({}, {}, Reading.EMPTY, ())
            if parsed is not None:
                return parsed
        elif not isinstance(value, list):
            parsed = self._filled(value if isinstance(value, str) else text.strip(_SPACE), Reading.VALUE, ())
            if parsed is not None:
                return parsed
        raise self.refused("They are no JSON object.")

    def text(self, text: str, repairs: tuple[str, ...], reason: str, fenced: bool) -> ParsedArguments:
        """A bare text, perhaps a broken attempt at more."""
        structure = "they are in a fence, but" if fenced else self._structure_in(text)
        if structure:
            why = (
                f"the text is no JSON: {reason}"
                if text.lstrip(_SPACE)[:1] in ("{", "[", '"') or fenced
                else "not as an object"
            )
            raise self.refused(f"They look like an object, but cannot be read as one ({structure}; {why}).")
        if read_scalar(text) is None and (parsed := self.fitted({}, {}, Reading.EMPTY, ())):
            return parsed
        if (
            not self.properties
            and not self.schema.closed
            and (parsed := self.fitted({"input": text}, {"input": text}, Reading.TEXT, repairs))
        ):
            return parsed
        parsed = self._filled(text, Reading.TEXT, repairs)
        if parsed is None:
            raise self.refused("They are a bare text, and which property it belongs to cannot be told.")
        return parsed

    def _filled(self, text: str, reading: Reading, repairs: tuple[str, ...]) -> ParsedArguments | None:
        """The text as the one required string property, or as `input` where the tool has that."""
        required = required_names(self.schema)
        name = (
            next(iter(required))
            if len(required) == 1
            else "input"
            if not required and "input" in self.properties
            else None
        )
        node = self.properties.get(name) if name else None
        if name is None or node is None or not _takes_text(node) or not _has_format(node, text):
            return None
        return self.fitted({name: text}, {name: text}, reading, (*repairs, "one_property"))

    def _structure_in(self, text: str) -> str | None:
        """What in a text shows that it was to be more than a text."""
        if _BROKEN_JSON.match(text):
            return "it begins as JSON"
        if text.startswith("{") and (text.count("{") != text.count("}") or text.count('"') % 2):
            return "it is cut off"
        names = {fold(name) for name in self.properties}
        pairs = _CALL_PAIR if _CALL.match(text) else _ANY_PAIR
        for found in pairs.finditer(text):
            if fold(found[1]) in names:
                return f"`{found[1][:40]}` is named like a property"
        if (flag := _FLAG.match(text)) and fold(flag[1]) in names:
            return f"`{flag[1][:40]}` is named like a property"
        return None

    def refused(self, reason: str, arguments: dict[str, Any] | None = None) -> ArgumentsError:
        """The rejection, with what is wrong with `arguments` if there is a reading."""
        problems: list[Problem] = []
        if arguments is not None:
            with suppress(TooCostlyError):
                problems = self.schema.problems(arguments, MOST_PROBLEMS)
            unknown = [name for name in arguments if name not in self.properties]
            if not problems:
                reason = (
                    f"`{unknown[0][:60]}` is no property of this tool." if unknown else "They can be read in two ways."
                )
        return rejection(self.schema, reason, problems)


_BROKEN_JSON = re.compile(
    r"""\{\s*(?:["'“]|\}|\\"|[^\W\d][\w$.-]{0,80}\s*:\s|\Z)|\[[\s\[]*(?:["'{]|-?[0-9.]+\s*(?:,|\Z)|\Z)|"[^"]*(?:\Z|"\s*:)""",
)
_ANY_PAIR = re.compile(
    r"(?:^|[\n,;{])[ \t]*(?:[-*+][ \t]+)?[\"'`*]{0,2}([^\W\d][\w.-]*+)[\"'`*]{0,2}[ \t]*[:=](?![=~/])"
)
_CALL = re.compile(r"\s*[\w.:]{1,80}\(")
_CALL_PAIR = re.compile(r"(?:^|[\n,;{(])[ \t]*[\"'`*]{0,2}([^\W\d][\w.-]*+)[\"'`*]{0,2}[ \t]*[:=](?![=~/])")
_FLAG = re.compile(r"(?:--?|/|<)([^\W\d][\w.-]*+)[\s=:>]")


def _takes_text(node: Schema, depth: int = 0) -> bool:
    """Whether a property is one for text: a string, perhaps among other alternatives."""
    if depth > 4:
        return False
    if node.types:
        return "string" in node.types
    if node.members is not None:
        return any(isinstance(member, str) for member in node.members)
    return any(_takes_text(each, depth + 1) for each in [*node.parts, *node.branches])


def _has_format(node: Schema, text: str) -> bool:
    form = node.raw.get("format")
    holds = _FORMATS.get(form) if isinstance(form, str) else None
    return holds is None or holds(text)


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.fullmatch(text) is not None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# Rough on purpose: they only keep a sentence from being sent as a date.
_FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    "date": _matches(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "date-time": _matches(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}\S*"),
    "time": _matches(r"[0-9]{2}:[0-9]{2}\S*"),
    "email": _matches(r"[^\s@]+@[^\s@]+"),
    "uri": _matches(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
    "url": _matches(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
    "uuid": _matches(r"[0-9A-Fa-f-]{32,36}"),
    "hostname": _matches(r"[A-Za-z0-9.-]+"),
    "ipv4": _is_address,
    "ipv6": _is_address,
}

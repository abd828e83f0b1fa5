"""The form of a page on which a person answers what an MCP server asks, made of the schema that it asks with.

Owns its fields, and how what was typed becomes answers. The schema is the masked copy that the page may see, so nothing
of it is sent back but names and chosen options: defaults are filled in, and answers checked, by a worker.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from tarsy_tasks.input_answers import names_secret

__all__ = ["FormField", "FormQuestion", "build_form", "read_form"]

_INPUT_TYPES = {"email": "email", "uri": "url", "date": "date"}
_NUMBERS = {"integer": "1", "number": "any"}
_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
    "format": "{}",
    "pattern": "matching {}",
}
_BOOLEAN = (("true", "yes"), ("false", "no"))


@dataclass(frozen=True, slots=True)
class FormField:
    """One field, as the page shows it.

    Attributes:
        key: Its name in the request.
        name: What the server calls it.
        label: For people.
        about: What the server says of it.
        hint: What fits, in a few words.
        kind: Of its control: `choice`, `choices` (several at once), or the type of an HTML input.
        step: Of a number.
        options: What can be chosen: what is sent, and how it is shown.
        is_required: Nothing takes its place.
        default: What does, as text.
        values: What was entered before, never a secret.
    """

    key: str
    name: str
    label: str
    about: str
    hint: str
    kind: str
    step: str
    options: tuple[tuple[str, str], ...]
    is_required: bool
    default: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FormQuestion:
    """One question. `host` is that of `url`, as a browser understands it."""

    name: str
    message: str
    warning: str
    url: str
    host: str
    fields: tuple[FormField, ...]


def build_form(questions: Sequence[Mapping[str, Any]], entered: Callable[[str], Sequence[str]]) -> list[FormQuestion]:
    """The form of what a server asks.

    Args:
        questions: As `InputQuestion`s, in JSON.
        entered: What was entered before, by the key of a field.
    """
    return [
        FormQuestion(
            str(question.get("name", "")),
            str(question.get("message", "")),
            str(question.get("warning", "")),
            url := str(question.get("url", "")),
            _host_of(url),
            tuple(_fields_of(number, _mapping(question.get("requested_schema")), entered)),
        )
        for number, question in enumerate(questions)
    ]


def read_form(form: Sequence[FormQuestion], entered: Callable[[str], Sequence[str]]) -> dict[str, dict[str, Any]]:
    """What was entered, as answers to the questions; what was left empty is not in them."""
    answers: dict[str, dict[str, Any]] = {}
    for question in form:
        answers[question.name] = {}
        for field in question.fields:
            if values := [value for value in entered(field.key) if value]:
                answers[question.name][field.name] = values if field.kind == "choices" else values[0]
    return answers


def _fields_of(number: int, schema: Mapping[str, Any], entered: Callable[[str], Sequence[str]]) -> Iterator[FormField]:
    found: Any = schema.get("required")
    required = cast("list[Any]", found) if isinstance(found, list) else []
    for place, (name, rules) in enumerate(_mapping(schema.get("properties")).items()):
        about, key = _mapping(rules), f"answer.{number}.{place}"
        kind, options = _control_of(name, about)
        yield FormField(
            key=key,
            name=name,
            label=str(about.get("title") or name),
            about=str(about.get("description") or ""),
            hint=", ".join(_hints_of(about, kind)),
            kind=kind,
            step=_NUMBERS.get(_type_of(about), ""),
            options=options,
            is_required=name in required and "default" not in about,
            default=_describe_default(about["default"], options) if "default" in about else "",
            values=() if kind == "password" else tuple(entered(key)),
        )


def _control_of(name: str, about: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    if options := _options_of(about):
        return "choice", options
    kind = _type_of(about)
    if kind == "boolean":
        return "choice", _BOOLEAN
    if kind == "array" and (options := _options_of(_mapping(about.get("items")))):
        return "choices", options
    if names_secret(name, about):
        return "password", ()
    if kind in _NUMBERS:
        return "number", ()
    return _INPUT_TYPES.get(str(about.get("format")), "text"), ()


def _type_of(about: Mapping[str, Any]) -> str:
    """The first one that is not null, as words of the server; empty if it names none."""
    found: Any = about.get("type")
    named = cast("list[Any]", found) if isinstance(found, list) else [found]
    return next((str(each) for each in named if each not in (None, "null")), "")


def _options_of(about: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    values, names = about.get("enum"), about.get("enumNames")
    if isinstance(values, list):
        texts = [str(each) for each in cast("list[Any]", values)]
        shown = [str(each) for each in cast("list[Any]", names)] if isinstance(names, list) else []
        return tuple(zip(texts, shown if len(shown) == len(texts) else texts, strict=True))
    titled: Any = about.get("oneOf", about.get("anyOf"))
    each_of = [_mapping(each) for each in cast("list[Any]", titled)] if isinstance(titled, list) else []
    if not all("const" in each for each in each_of):
        return ()
    return tuple((str(each["const"]), str(each.get("title") or each["const"])) for each in each_of)


def _hints_of(about: Mapping[str, Any], kind: str) -> Iterator[str]:
    if kind == "number":
        yield "a whole number" if _type_of(about) == "integer" else "a number"
    elif kind == "text" and (named := _type_of(about)) not in ("string", ""):
        yield f"{named}, as JSON"
    for word, text in _LIMITS.items():
        value = about.get(word)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            yield text.format(value)


def _describe_default(default: Any, options: Sequence[tuple[str, str]]) -> str:
    names = dict(options)
    if isinstance(default, list):
        return ", ".join(names.get(str(each), str(each)) for each in cast("list[Any]", default))
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return names.get(text, text)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _host_of(url: str) -> str:
    with suppress(ValueError):
        return urlsplit(url).hostname or ""
    return ""

"""Whether answers fit what a server has asked, and what is sent to it for them.

Owns the check that comes before anything is sent: each question has an answer, the values of a form fit its schema, and
defaults take the places of values that are missing (SEP-1034). It knows neither Redis nor MCP's own types.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast, get_args

from tarsy_tasks.arguments import read_arguments
from tarsy_tasks.arguments.rejection import find_problems
from tarsy_tasks.arguments.schema import compile_schema
from tarsy_tasks.arguments.shape import find_near
from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.masking.names import rate_name
from tarsy_tasks.questions import InputAction

__all__ = [
    "AskedQuestion",
    "UnfitAnswerError",
    "describe_answers",
    "dump_asked",
    "load_asked",
    "names_secret",
    "read_answers",
]

_WORDS: tuple[str, ...] = get_args(InputAction)
_SHOWN = 20
_SHOWN_CHARS = 100


class UnfitAnswerError(ValueError):
    """Answers cannot be sent; the text says why."""


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One question as it is needed to answer it, unmasked.

    Attributes:
        name: By which it is answered.
        key: What the server calls it.
        mode: `form` or `url`.
        schema: Of the form.
    """

    name: str
    key: str
    mode: str = "form"
    schema: dict[str, Any] = field(default_factory=dict[str, Any])


def dump_asked(asked: Sequence[AskedQuestion]) -> str:
    """As JSON."""
    return json.dumps([asdict(each) for each in asked], ensure_ascii=False, separators=(",", ":"))


def load_asked(text: str | bytes) -> tuple[AskedQuestion, ...]:
    """The reverse of `dump_asked`. Raises `ValueError` or `TypeError` for any other text."""
    return tuple(AskedQuestion(**each) for each in json.loads(text))


def read_answers(asked: Sequence[AskedQuestion], given: Any) -> dict[str, dict[str, Any]]:
    """What is sent to the server: for each of its keys an action, and the values of a form that is accepted.

    Args:
        given: As `questions.Answers`; anybody may have written it.

    Raises:
        UnfitAnswerError: It does not fit.
    """
    if isinstance(given, str):
        given = {each.name: given for each in asked}
    if not isinstance(given, Mapping):
        raise UnfitAnswerError(f"answers are a mapping, by the names of the questions, not {type(given).__name__}")
    answers = cast("Mapping[Any, Any]", given)
    names = [each.name for each in asked]
    unknown = [str(name)[:_SHOWN_CHARS] for name in answers if name not in names]
    if unknown:
        raise UnfitAnswerError(f"there is no question {_listed(unknown)}; the questions are {_listed(names)}")
    if missing := [name for name in names if answers.get(name) is None]:
        raise UnfitAnswerError(f"there is no answer to {_listed(missing)}; to answer nothing, say `decline`")
    return {each.key: _read_one(each, answers[each.name]) for each in asked}


def names_secret(name: str, field: Any) -> bool:
    """Whether a field of a form asks for what looks like a secret, by its name, title or format."""
    about: Mapping[str, Any] = cast("Mapping[str, Any]", field) if isinstance(field, Mapping) else {}
    names = [each for each in (name, about.get("title")) if isinstance(each, str)]
    return about.get("format") == "password" or any(rate_name(each) is not None for each in names)


def describe_answers(sent: Mapping[str, Mapping[str, Any]]) -> str:
    """For the audit: what was done, without the values."""
    words: list[str] = []
    for key, answer in sent.items():
        fields = ", ".join(answer.get("content") or ())
        words.append(f"{key}: {answer['action']}{f' ({fields})' if fields else ''}")
    return "; ".join(words)


def _read_one(question: AskedQuestion, answer: Any) -> dict[str, Any]:
    if isinstance(answer, str) and answer in _WORDS and answer != "accept":
        return {"action": answer}
    if answer == "accept":
        answer = {}
    if not isinstance(answer, Mapping):
        raise UnfitAnswerError(
            f"the answer to `{question.name}` is {_kind(answer)}; it has to be the values of the form, or one of "
            f"{', '.join(_WORDS)}"
        )
    values = {str(name): value for name, value in cast("Mapping[Any, Any]", answer).items()}
    if question.mode == "url":
        if values:
            raise UnfitAnswerError(f"`{question.name}` is a page to visit, and takes no values: say `accept`")
        return {"action": "accept"}
    return {"action": "accept", "content": _fit(question, values)}


def _fit(question: AskedQuestion, values: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = question.schema.get("properties") or {}
    for name in values:
        if name not in properties:
            near = find_near(name, properties)
            hint = f"; did you mean `{near}`?" if near else f"; it has {_listed(list(properties))}"
            raise UnfitAnswerError(f"the form `{question.name}` has no field `{name[:_SHOWN_CHARS]}`{hint}")
    defaults: dict[str, Any] = {
        name: field["default"] for name, field in properties.items() if isinstance(field, dict) and "default" in field
    }
    given: dict[str, Any] = {**defaults, **{name: value for name, value in values.items() if value is not None}}
    schema = {"type": "object", **question.schema}
    try:
        return read_arguments(given, schema).arguments
    except ArgumentsError:
        secrets = [f"`{name}`" for name, field in properties.items() if names_secret(name, field)]
        problems = [_unquoted(each, secrets) for each in find_problems(compile_schema(schema), given)[:_SHOWN]]
        raise UnfitAnswerError(f"the answer to `{question.name}` does not fit: {' '.join(problems)}") from None


def _unquoted(problem: str, secrets: Sequence[str]) -> str:
    """What is wrong with a value, without the value if that is a secret."""
    place = problem.partition(": ")[0]
    return f"{place}: its value is not what the form asks for." if place in secrets else problem


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown or "none"


def _kind(value: Any) -> str:
    return "another text" if isinstance(value, str) else f"of the type {type(value).__name__}"

"""The questions of a server, as people and models see them, and as their answers are checked.

Owns the bounds and the masking of what a server asks, and the warnings for the person who is asked. In both eras. What
is large is read in a thread (`long_work`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from mcp_types import ElicitRequestURLParams

from tarsy_tasks.errors import CallError
from tarsy_tasks.input_answers import AskedQuestion, names_secret
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.questions import InputQuestion
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import ASKED_S, is_large
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.definition_fields import mask_object
from tarsy_tasks.worker.transport.elicitation_handlers import ElicitParams

__all__ = ["MOST_ROUNDS", "Questions", "read_questions"]

MOST_ROUNDS = 10
"""How often a server may ask in one call."""
_MOST_QUESTIONS = 20
_MESSAGE_CHARS = 4000
_SCHEMA_CHARS = 32 * 1024
_URL_CHARS = 4000
_NAME_CHARS = 100
_MOST_CHARS = 64 * 1024
"""Of all that is shown of what a server asks at once: Redis keeps it as often as people and agents are shown it."""


@dataclass(frozen=True, slots=True)
class Questions:
    """What a server asks at once.

    Attributes:
        questions: Masked.
        asked: The same for the check of the answers, unmasked.
    """

    questions: tuple[InputQuestion, ...]
    asked: tuple[AskedQuestion, ...]

    def shown(self) -> list[dict[str, Any]]:
        """The questions as JSON."""
        return [each.model_dump(mode="json") for each in self.questions]


async def read_questions(asked: Mapping[str, ElicitParams], call: RunningCall) -> Questions:
    """What a server asks, by its keys.

    Raises:
        CallError: It is too much.
    """
    if len(asked) > _MOST_QUESTIONS:
        raise _too_much(call, f"{len(asked)} questions at once; {_MOST_QUESTIONS} are possible")
    if is_large([[key, *_texts_of(params)] for key, params in asked.items()]):
        return await call.connection.long_work.run(_read, asked, call, allowed_s=ASKED_S)
    return _read(asked, call)


def _texts_of(params: ElicitParams) -> list[Any]:
    if isinstance(params, ElicitRequestURLParams):
        return [params.message, params.url]
    return [params.message, params.requested_schema]


def _read(asked: Mapping[str, ElicitParams], call: RunningCall) -> Questions:
    masker, chars = call.connection.masker, 0
    shown: dict[str, InputQuestion] = {}
    kept: list[AskedQuestion] = []
    for number, (key, params) in enumerate(asked.items(), start=1):
        name = masker.mask(key[: _NAME_CHARS + 1])
        if name != key or len(key) > _NAME_CHARS or name in shown:
            name = f"question{number}"
        question, read = _read_one(call, name, key, params, masker)
        shown[name] = question
        kept.append(read)
        chars += len(key) + len(question.model_dump_json())
        if chars > _MOST_CHARS:
            raise _too_much(call, f"questions with more than {_MOST_CHARS} characters")
    return Questions(tuple(shown.values()), tuple(kept))


def _read_one(
    call: RunningCall, name: str, key: str, params: ElicitParams, masker: Masker
) -> tuple[InputQuestion, AskedQuestion]:
    message = masker.mask_start(params.message, _MESSAGE_CHARS)
    if isinstance(params, ElicitRequestURLParams):
        if len(params.url) > _URL_CHARS:
            raise _too_much(call, f"a URL of {len(params.url)} characters")
        warning = _warn_of_url(params.url)
        question = InputQuestion(name=name, message=message, mode="url", url=masker.mask(params.url), warning=warning)
        return question, AskedQuestion(name, key, "url")
    schema = params.requested_schema
    if (length := len(json.dumps(schema))) > _SCHEMA_CHARS:
        raise _too_much(call, f"a form whose schema has {length} characters")
    masked = mask_object(schema, masker)
    question = InputQuestion(name=name, message=message, requested_schema=masked, warning=_warn_of_form(schema))
    return question, AskedQuestion(name, key, "form", schema)


def _warn_of_form(schema: Mapping[str, Any]) -> str:
    found: Any = schema.get("properties")
    fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    secrets = [name[:_NAME_CHARS] for name, field in fields.items() if names_secret(name, field)]
    if not secrets:
        return ""
    return (
        f"This form asks for what looks like a secret ({', '.join(secrets)}). MCP does not allow that: do not answer "
        "it unless you know why the server needs it. What you answer passes Redis and the server."
    )


def _warn_of_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return "This is not a valid URL."
    if parts.scheme != "https":
        return f"This is not an https URL ({parts.scheme or 'no scheme'}): do not open it unless you know why."
    if "xn--" in host or not host.isascii():
        return f"The name of the host, {host}, may be written to look like another one."
    if parts.username or parts.password:
        return f"The URL begins with a user name; the host is {host}."
    return ""


def _too_much(call: RunningCall, what: str) -> CallError:
    return CallError(
        ErrorCode.TOO_MANY_QUESTIONS,
        f"MCP server `{call.server}` asks for input to complete {call.record.title}: {what}. It has not completed the "
        "call. Continue without it, and tell the user.",
    )

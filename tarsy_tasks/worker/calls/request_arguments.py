"""What a message says of a request that is not a tool call: its arguments, checked before anything is sent.

Owns reading them, and what follows for the call: such a request has no tool's definition, and may always be repeated.
"""

import json
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.calls.running_call import RunningCall

__all__ = ["RequestArguments", "read_request"]

_LARGEST_CHARS = 64 * 1024
_MOST_VALUES = 10_000
"""Those of a longer list would hold up the event loop of all calls."""


class RequestArguments(BaseModel):
    """The arguments of one kind of request; unknown ones are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


T = TypeVar("T", bound=RequestArguments)


def read_request(call: RunningCall, kind: type[T]) -> T:
    """The arguments of a call, which may be sent again from now on.

    Raises:
        ArgumentsError: They are not what the request needs.
    """
    call.may_replay = True
    found: Any = call.raw_arguments
    if isinstance(found, str):
        if len(found) > _LARGEST_CHARS:
            raise _invalid(call, f"they have more than {_LARGEST_CHARS} characters")
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            raise _invalid(call, "they are not JSON") from None
    if _has_more_values(found, _MOST_VALUES):
        raise _invalid(call, f"they have more than {_MOST_VALUES} values")
    try:
        arguments = kind.model_validate({} if found is None else found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _invalid(call, f"{place}: {first['msg']}" if place else first["msg"]) from None
    call.arguments = call.record.arguments = arguments.model_dump(exclude_none=True)
    return arguments


def _has_more_values(value: Any, most: int) -> bool:
    left: list[Any] = [value]
    for each in left:
        if isinstance(each, dict | list):
            inner = cast("dict[Any, Any] | list[Any]", each)
            if len(left) + len(inner) > most:
                return True
            left += inner.values() if isinstance(inner, dict) else inner
    return False


def _invalid(call: RunningCall, why: str) -> ArgumentsError:
    return ArgumentsError(
        ErrorCode.INVALID_ARGUMENTS,
        f"The arguments of {call.record.title} are not valid: {why}. Nothing was sent. Correct them.",
    )

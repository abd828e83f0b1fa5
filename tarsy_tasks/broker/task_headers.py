"""What Celery takes from a message of a task, as any producer may have written it.

Owns the types, except that of an ETA (`worker/process/eta.py`). Celery 5.7 looks at none of them: a name that is a list
fails in the thread of the pool, where nobody acknowledges the message, so that each one takes a slot of the worker for
good.
"""

from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from tarsy_tasks.broker.task_names import PREFIX

__all__ = ["LONGEST_NAME", "call_id_of", "check_headers", "is_usable_id", "is_usable_name"]

LONGEST_NAME = 1000
"""Of an id or a name of a message: it is part of keys in Redis, of log lines and of Flower's pages."""


def is_usable_name(found: Any) -> bool:
    """Whether it is a text that may be a name: JSON also has halves of characters, which nothing can be sent with."""
    return isinstance(found, str) and len(found) <= LONGEST_NAME and found == found.encode(errors="replace").decode()


def is_usable_id(found: Any) -> bool:
    """Whether it may be the id of a task."""
    return found != "" and is_usable_name(found)


def call_id_of(headers: Any) -> str | None:
    """The task id of a message, if it is one of our tasks."""
    try:
        task, task_id = headers["task"], headers["id"]
    except (KeyError, TypeError):
        return None
    return task_id if is_usable_id(task_id) and str(task).startswith(PREFIX) else None


def _check_name(text: str) -> str:
    if not is_usable_name(text):
        raise ValueError(f"it has half of a character, or more than {LONGEST_NAME} characters")
    return text


def _check_id(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


_Number = int | float
_Name = Annotated[str, AfterValidator(_check_name)]
_Text = _Name | None


class _Headers(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    task: _Name
    id: Annotated[_Name, AfterValidator(_check_id)]
    shadow: _Text = None
    root_id: _Text = None
    parent_id: _Text = None
    group: _Text = None
    origin: _Text = None
    expires: _Text = None
    retries: int | None = None
    timelimit: list[_Number | None] | None = None
    ignore_result: bool | None = None
    stamped_headers: list[_Name] | None = None
    stamps: dict[str, Any] | None = None


_OF_TASKS = frozenset(
    {*_Headers.model_fields, "eta", "argsrepr", "kwargsrepr", "lang", "meth", "delivery_info", "properties", "headers"}
)


class _Following(BaseModel):
    """What Celery dispatches when the task ends, in the body of its message."""

    model_config = ConfigDict(strict=True, extra="ignore")

    callbacks: list[dict[str, Any]] | None = None
    errbacks: list[dict[str, Any]] | None = None
    chain: list[dict[str, Any]] | None = None
    chord: dict[str, Any] | None = None


def check_headers(headers: dict[str, Any], body: Any) -> str:
    """What is wrong with them, or with what follows the task, quoting nothing of them; empty if nothing is.

    Args:
        headers: Of the message. Those of Celery's first protocol are in the body.
        body: Decoded.
    """
    if "task" not in headers and isinstance(body, dict):
        if known := _OF_TASKS.intersection(headers):
            # Celery would take some of them from here, and others from the body.
            return f"`{min(known)}`: a message without the header `task` has it in its body"
        headers = cast("dict[str, Any]", body)
    elif isinstance(body, dict):
        headers = {**body, **headers}
    if "task" not in headers:
        return ""
    try:
        found = _Headers.model_validate(headers)
        match body:
            case [_, _, following] if following is not None:
                _Following.model_validate(following)
            case dict():
                _Following.model_validate(body)
            case _:
                pass
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"`{'.'.join(map(str, first['loc'][:1]))}`: {first['msg']}"
    if found.timelimit is not None and len(found.timelimit) != 2:
        return "`timelimit`: it must have two values, the hard and the soft limit"
    return ""

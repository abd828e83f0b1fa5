"""What a message says, as far as it can be read: any producer may have written it, and anything may lie in Redis.

Owns reading the books of a message, and what a call says of itself. It checks nothing and refuses nothing: whether a
call may be made, the worker's task decides.
"""

import base64
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter

from tarsy_tasks.broker.signing import SIGNED, read_signed

__all__ = ["CallMessage", "DamagedMessage", "InFlightEntry", "read_entry"]

_LONGEST_NAME = 1000
"""More than is shown anywhere, for it is masked before it is cut."""


class DamagedMessage(ValueError):
    """A message that cannot be read; the text says why."""


class _Message(BaseModel):
    """kombu's form of a message."""

    model_config = ConfigDict(extra="allow")

    body: str
    headers: dict[str, Any]
    properties: dict[str, Any]

    @property
    def is_signed(self) -> bool:
        return (self.model_extra or {}).get("content-type") == SIGNED


_Body = TypeAdapter(tuple[list[Any], dict[str, Any], Any])
"""Celery's: positional arguments, keyword arguments, and how the task hangs together with others."""


@dataclass(frozen=True)
class CallMessage:
    """The arguments of the task `tarsy.call_tool`, positional or named."""

    args: Any
    kwargs: Any

    @property
    def server(self) -> str:
        return self._name(0, "server")

    @property
    def tool(self) -> str:
        return self._name(1, "tool")

    @property
    def arguments(self) -> Any:
        """Of the tool: text, an object or nothing. They may hold secrets."""
        return self._argument(2, "arguments")

    @property
    def info(self) -> dict[str, Any]:
        """Who asks: the fourth argument."""
        found: Any = self._argument(3, "call")
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def _name(self, position: int, name: str) -> str:
        found = self._argument(position, name)
        return found[:_LONGEST_NAME] if isinstance(found, str) else ""

    def _argument(self, position: int, name: str) -> Any:
        args, kwargs = self.args, self.kwargs
        if isinstance(args, list | tuple) and position < len(cast("list[Any]", args)):
            return cast("list[Any]", args)[position]
        return cast("dict[str, Any]", kwargs).get(name) if isinstance(kwargs, dict) else None


@dataclass(frozen=True)
class InFlightEntry:
    """The books of a message that can be read, and what it says.

    Attributes:
        text: The books as they lie in Redis.
        queue: Where it was published.
        task: Name of the Celery task.
    """

    text: bytes
    queue: str
    message: _Message
    call: CallMessage
    embed: Any

    @property
    def task(self) -> str:
        return str(self.message.headers.get("task"))

    @property
    def is_encoded(self) -> bool:
        return self.message.properties.get("body_encoding") == "base64"


def read_entry(text: bytes) -> InFlightEntry:
    """What the books of a message say.

    Raises:
        DamagedMessage: They cannot be read.
    """
    queue, *rest = text.split(b"\n", 2)
    if len(rest) < 2:
        raise DamagedMessage("it does not begin with the name of its queue")
    try:
        message = _Message.model_validate_json(rest[1])
        body = base64.b64decode(message.body) if message.properties.get("body_encoding") == "base64" else message.body
    except ValueError as error:
        raise DamagedMessage(f"it is no message of a Celery task ({type(error).__name__})") from None
    try:
        said = read_signed(body) if message.is_signed else None
    except ValueError as error:
        raise DamagedMessage(str(error)) from None
    try:
        args, kwargs, embed = _Body.validate_json(body) if said is None else _Body.validate_python(said)
        return InFlightEntry(text, queue.decode(), message, CallMessage(args, kwargs), embed)
    except ValueError as error:
        # Its text may quote arguments.
        raise DamagedMessage(f"it is no message of a Celery task ({type(error).__name__})") from None

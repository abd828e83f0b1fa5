"""Reading a message: any producer may have written it, and its entry in Redis may be damaged.

Owns the parts of a message, of an entry of the in-flight table, and of the call in it. It refuses nothing that it can
read within its bounds: whether a call may be made, the worker's task decides.
"""

import base64
import bz2
import json
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter

from tarsy_tasks.broker.signing import SIGNED, read_signed

__all__ = [
    "LARGEST_BYTES",
    "CallMessage",
    "DamagedMessage",
    "InFlightEntry",
    "decode_body",
    "read_entry",
    "read_message",
    "uncompress",
]

LARGEST_BYTES = 64 * 1024 * 1024
"""Of a message, also when it is uncompressed."""
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": lzma.LZMADecompressor,
}
"""By kombu's name of the compression; others have no decoder that can be limited."""
_LONGEST_NAME = 1000
"""Longer than anything that is shown: names are masked first, and cut then."""


class DamagedMessage(ValueError):
    """A message that cannot be read; the text is the reason."""


class _Message(BaseModel):
    """kombu's form of a message."""

    model_config = ConfigDict(extra="allow")

    body: str
    headers: dict[str, Any]
    properties: dict[str, Any]

    @property
    def is_signed(self) -> bool:
        return (self.model_extra or {}).get("content-type") == SIGNED

    @property
    def is_encoded(self) -> bool:
        return self.properties.get("body_encoding") == "base64"


_LISTS = (list, tuple)
_Body = TypeAdapter(tuple[list[Any], dict[str, Any], Any])
"""Celery's: positional arguments, keyword arguments, and links to other tasks."""


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
        """Those of the tool: text, an object or None. They may hold secrets."""
        return self._argument(2, "arguments")

    @property
    def info(self) -> dict[str, Any]:
        """The fourth argument: who calls, until when, and more."""
        found: Any = self._argument(3, "call")
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def _name(self, position: int, name: str) -> str:
        found = self._argument(position, name)
        return found[:_LONGEST_NAME] if isinstance(found, str) else ""

    def _argument(self, position: int, name: str) -> Any:
        args, kwargs = self.args, self.kwargs
        if args.__class__ in _LISTS and position < len(args):
            return args[position]
        return kwargs.get(name) if kwargs.__class__ is dict else None


@dataclass(frozen=True)
class InFlightEntry:
    """An entry of the in-flight table: its text in Redis, the queue where the message was published, and the
    message."""

    text: bytes
    queue: str
    message: _Message
    call: CallMessage
    embed: Any

    @property
    def task(self) -> str:
        return str(self.message.headers.get("task"))


def read_message(text: bytes | str) -> dict[str, Any]:
    """Read a message as kombu writes it, in plain JSON: kombu's own reader makes any object that a message asks for.

    Raises:
        DamagedMessage: It is not one, or it is too large.
    """
    if len(text) > LARGEST_BYTES or not text:  # what is too large is fetched without its text
        raise DamagedMessage(f"it is larger than {LARGEST_BYTES} bytes")
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedMessage(f"it is not JSON ({type(error).__name__})") from None
    parts = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if not (isinstance(parts.get("headers"), dict) and isinstance(parts.get("properties"), dict)):
        raise DamagedMessage("it has no headers and properties")
    if not isinstance(parts.get("body"), str):
        raise DamagedMessage("it has no body")
    return parts


def decode_body(message: dict[str, Any]) -> str | bytes:
    """The body of a message that `read_message` gave. Raises `DamagedMessage`."""
    encoding = message["properties"].get("body_encoding")
    try:
        return base64.b64decode(message["body"]) if encoding == "base64" else message["body"]
    except ValueError:
        raise DamagedMessage("its body is not base64") from None


def uncompress(message: dict[str, Any]) -> None:
    """Replace the body of such a message, if it is compressed. Raises `DamagedMessage`."""
    kind = message["headers"].pop("compression", None)
    if not kind:
        return
    if kind not in _DECOMPRESSORS:
        raise DamagedMessage(f"it is compressed in another way than {', '.join(_DECOMPRESSORS)}")
    body = decode_body(message)
    decoder = _DECOMPRESSORS[kind]()
    try:
        found = decoder.decompress(body.encode() if isinstance(body, str) else body, LARGEST_BYTES)
    except (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DamagedMessage(f"it cannot be uncompressed ({type(error).__name__})") from None
    if not decoder.eof:
        raise DamagedMessage(f"it is cut off, or larger than {LARGEST_BYTES} bytes")
    message["body"] = base64.b64encode(found).decode()
    message["properties"]["body_encoding"] = "base64"


def read_entry(text: bytes) -> InFlightEntry:
    """Read an entry. Raises `DamagedMessage`."""
    queue, *rest = text.split(b"\n", 2)
    if len(rest) < 2:
        raise DamagedMessage("it does not begin with the name of a queue")
    try:
        message = _Message.model_validate_json(rest[1])
        body = base64.b64decode(message.body) if message.is_encoded else message.body
    except ValueError as error:
        raise DamagedMessage(f"it is not a message of a Celery task ({type(error).__name__})") from None
    try:
        verified = read_signed(body) if message.is_signed else None
    except ValueError as error:
        raise DamagedMessage(str(error)) from None
    try:
        args, kwargs, embed = _Body.validate_json(body) if verified is None else _Body.validate_python(verified)
        return InFlightEntry(text, queue.decode(), message, CallMessage(args, kwargs), embed)
    except ValueError as error:
        # Its text may quote arguments.
        raise DamagedMessage(f"it is not a message of a Celery task ({type(error).__name__})") from None

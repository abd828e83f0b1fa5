"""Reading a message: any producer may have written it, and its entry in Redis may be damaged.

Owns the parts of a message, of an entry of the in-flight table, and of the call in it. It refuses nothing that it can
read within its bounds: whether a call may be made, the worker's task decides.
"""

import base64
import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter

from tarsy_tasks.broker.received_json import LARGEST_BYTES, read_json
from tarsy_tasks.broker.signing import SIGNED, read_signed
from tarsy_tasks.broker.task_names import CALL_TOOL
from tarsy_tasks.methods import TOOL_CALL

__all__ = [
    "CallMessage",
    "DamagedMessage",
    "InFlightEntry",
    "decode_body",
    "read_broadcast",
    "read_entry",
    "read_message",
    "read_plain_arguments",
]

_MEMORY_BYTES = 128 * 1024 * 1024
"""For the dictionary of LZMA, which may ask for 4 GB; what Python writes needs 8 MB by default."""
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": partial(lzma.LZMADecompressor, memlimit=_MEMORY_BYTES),
}
"""By kombu's name of the compression; others have no decoder that can be limited."""
_ARGUMENTS = 4
_FOLLOWING = frozenset({"callbacks", "errbacks", "chain", "chord"})
_LARGEST_BROADCAST_BYTES = 1024 * 1024
"""A command to revoke 20,000 calls."""
_ENCODINGS = (None, "base64")
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
    """The arguments of a task that is a call, positional or named; `task` is its name."""

    args: Any
    kwargs: Any
    task: str = CALL_TOOL

    @property
    def server(self) -> str:
        return self._name(0, "server")

    @property
    def tool(self) -> str:
        return self._name(1, "tool")

    @property
    def operation(self) -> str:
        """What the call asks for: a tool, or else the method that stands in its place."""
        return TOOL_CALL if self.task == CALL_TOOL else self.tool

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
    """Read a message as kombu writes it, with all that kombu needs to take it.

    Raises:
        DamagedMessage: It is not one, or it is too large.
    """
    if not text:
        raise DamagedMessage(f"it is larger than {LARGEST_BYTES} bytes")  # so it was fetched without its text
    try:
        found: Any = read_json(text)
    except ValueError as error:
        raise DamagedMessage(str(error)) from None
    parts = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    found = parts.get("properties")
    properties = cast("dict[str, Any]", found) if isinstance(found, dict) else None
    if not isinstance(parts.get("headers"), dict) or properties is None:
        raise DamagedMessage("it has no headers and properties")
    if not isinstance(parts.get("body"), str):
        raise DamagedMessage("it has no body")
    if not isinstance(properties.get("delivery_tag"), str):
        raise DamagedMessage("it has no delivery tag")
    if not isinstance(properties.get("delivery_info"), dict | None):
        raise DamagedMessage("its `delivery_info` is not an object")
    return parts


def read_broadcast(text: bytes) -> dict[str, Any]:
    """Read a message that every process gets. Raises `DamagedMessage`."""
    if len(text) > _LARGEST_BROADCAST_BYTES:
        raise DamagedMessage(f"it is larger than {_LARGEST_BROADCAST_BYTES} bytes")
    return read_message(text)


def decode_body(message: dict[str, Any], compressions: Collection[str] = ()) -> bytes:
    """The body of a message that `read_message` gave.

    Args:
        compressions: Kombu's names of those that are accepted. With any other, nothing is unpacked.

    Raises:
        DamagedMessage: It cannot be decoded, or is compressed in another way, or too large.
    """
    encoding, kind = message["properties"].get("body_encoding"), message["headers"].get("compression")
    if encoding not in _ENCODINGS:
        raise DamagedMessage("the encoding of its body is not base64")
    if kind and kind not in compressions:
        raise DamagedMessage("it is compressed, which task_compression does not allow")
    try:
        body = base64.b64decode(message["body"]) if encoding else message["body"].encode()
    except ValueError:
        raise DamagedMessage("its body is not base64, or has half of a character") from None
    return _uncompress(body, kind) if kind else body


def read_plain_arguments(body: str | bytes) -> tuple[Any, ...] | None:
    """The arguments in the body of a message, if it has all of them by position, and nothing follows it."""
    try:
        arguments, named, embed = json.loads(body)
        if named or any(embed.values()) or not _FOLLOWING.issuperset(embed) or len(arguments) != _ARGUMENTS:
            return None
        return tuple(arguments)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _uncompress(body: bytes, kind: str) -> bytes:
    if kind not in _DECOMPRESSORS:
        raise DamagedMessage(f"its compression is none of {', '.join(_DECOMPRESSORS)}")
    decoder = _DECOMPRESSORS[kind]()
    try:
        found: bytes = decoder.decompress(body, LARGEST_BYTES)
    except (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError, MemoryError) as error:
        raise DamagedMessage(f"it cannot be decompressed ({type(error).__name__})") from None
    if not decoder.eof:
        raise DamagedMessage(f"it is cut off, or larger than {LARGEST_BYTES} bytes")
    return found


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
        return InFlightEntry(
            text, queue.decode(), message, CallMessage(args, kwargs, str(message.headers.get("task"))), embed
        )
    except ValueError as error:
        # Its text may quote arguments.
        raise DamagedMessage(f"it is not a message of a Celery task ({type(error).__name__})") from None

"""Messages of one task for one queue, written from one that kombu wrote.

Owns the text of a message and the places in it that differ from call to call. What Celery and kombu do for each message
costs as much as the rest of a call in its agent; here they write one, and its text is filled in. Only for messages in
plain JSON, which `build_template` finds out.
"""

import base64
import json
import re
from typing import Any
from uuid import uuid4

from kombu.connection import Connection
from kombu.transport import virtual
from kombu.utils.json import dumps

from tarsy_tasks.broker.kombu_message import tag_by_call
from tarsy_tasks.broker.kombu_transport import Transport
from tarsy_tasks.broker.priority_lists import number_of
from tarsy_tasks.broker.session_handover import SESSION_HEADER
from tarsy_tasks.priorities import NORMAL, Priority

__all__ = ["MessageTemplate", "build_template"]


_encode = json.JSONEncoder().encode
_ID, _BODY, _SHOWN, _GARBAGE_AT, _SESSION = (uuid4().hex for _ in range(5))
"""What stands where a message is filled in: found again in its text, whatever else is in it."""


class MessageTemplate:
    """Args:
    text: The message, with `_ID` and the others where it is filled in.
    tail: What follows the positional arguments in its body.
    """

    def __init__(self, text: str, tail: str) -> None:
        self._pieces = re.split(f"({_ID}|{_BODY}|{_SHOWN}|{_GARBAGE_AT}|{_SESSION})", text)
        self._tail = tail

    def write(self, task_id: str, arguments: tuple[Any, ...], shown: str, garbage_at: float, session: str = "") -> str:
        """The message of a task.

        Args:
            arguments: Positional, of JSON types.
            shown: What Flower shows for them.
            garbage_at: After which nobody waits for it, in seconds of the clock of Redis.
            session: The isolated session of its call, for a template of such calls.
        """
        values = {
            _ID: task_id,
            _BODY: base64.b64encode(f"[{_encode(arguments)}{self._tail}".encode()).decode(),
            _SHOWN: _encode(shown),
            _GARBAGE_AT: repr(garbage_at),
            _SESSION: session,
        }
        return "".join([values.get(piece, piece) for piece in self._pieces])


def build_template(
    app: Any, task: str, queue: str, priority: Priority = NORMAL, *, is_isolated: bool = False
) -> MessageTemplate | None:
    """A template of an application's messages of a priority; None if kombu writes them in another form for each call:
    with another transport, signed, compressed. It sends nothing.

    Args:
        is_isolated: For calls of isolated sessions.
    """
    conf, transport = app.conf, app.connection_for_write().get_transport_cls()
    if transport is not Transport or conf.task_serializer != "json" or conf.task_compression:
        return None
    message = app.amqp.as_task_v2(_ID, task, args=(), argsrepr=_SHOWN, kwargsrepr="{}")
    message.headers["garbage_at"] = _GARBAGE_AT
    if is_isolated:
        message.headers[SESSION_HEADER] = _SESSION
    connection: Any = Connection(transport=_RecordingTransport)
    with connection:
        channel = connection.channel()
        producer = app.amqp.Producer(channel, auto_declare=False)
        app.amqp.send_task_message(
            producer, task, message, queue=queue, priority=number_of(priority), declare=[], retry=False
        )
    body, channel.written["body"] = channel.written["body"], _BODY
    text = dumps(channel.written).replace(f'"{_SHOWN}"', _SHOWN).replace(f'"{_GARBAGE_AT}"', _GARBAGE_AT)
    return MessageTemplate(text, base64.b64decode(body).decode().removeprefix("[[]"))


class _RecordingChannel(virtual.Channel):
    """Keeps the message that is published."""

    written: dict[str, Any]

    def _inplace_augment_message(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        stock: Any = super()
        stock._inplace_augment_message(message, exchange, routing_key)
        tag_by_call(message)

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:  # noqa: ARG002
        self.written = message


class _RecordingTransport(virtual.Transport):
    Channel = _RecordingChannel

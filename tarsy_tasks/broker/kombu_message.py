"""A message as kombu and Celery see it.

Owns what they make of its body. kombu 5.7 unpacks what is compressed before it looks whether the content is accepted,
and without a limit; it decodes `application/data` with any codec of Python's that the message names, also those that
unpack; and a body in JSON may ask it for other objects.
"""

from typing import Any

from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.transport import virtual

from tarsy_tasks.broker.messages import DamagedMessage, decode_body
from tarsy_tasks.broker.received_json import read_json
from tarsy_tasks.broker.task_headers import call_id_of

__all__ = ["JSON", "Message", "tag_by_call"]

JSON = "application/json"


class Message(virtual.Message):
    """A message that was read by `read_message`.

    What is wrong with its body is in `errors`: Celery's consumer refuses it then, with an answer. Once it is decoded,
    `signer` is who signed it.
    """

    def __init__(self, payload: dict[str, Any], channel: Any = None, **options: Any) -> None:
        body: bytes = b""
        self.errors: list[Any] = []
        self.signer = ""
        try:
            body = decode_body(payload, channel.compressions)
        except DamagedMessage as damage:
            self.errors.append((DecodeError, DecodeError(str(damage)), damage.__traceback__))
        headers = {name: value for name, value in payload["headers"].items() if name != "compression"}
        stock: Any = super()
        stock.__init__({**payload, "body": "", "headers": headers}, channel=channel, **options)
        self._raw, self.body = payload, body

    def _decode(self) -> Any:
        kind, accepted = self.content_type, self.accept
        if not (isinstance(kind, str) and kind in ((JSON,) if accepted is None else accepted)):
            raise ContentDisallowed("its type of content is not accepted")
        if kind != JSON:
            stock: Any = super()
            found = stock._decode()
            self.signer = getattr(found, "signer", "")
            return found
        try:
            return read_json(self.body)
        except ValueError as error:
            raise DecodeError(str(error)) from None


def tag_by_call(message: dict[str, Any]) -> None:
    """A call is found by its id, and a call that is published again is the same call."""
    if call_id := call_id_of(message["headers"]):
        message["properties"]["delivery_tag"] = call_id

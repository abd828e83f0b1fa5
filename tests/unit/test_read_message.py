"""Reading a message that was taken: what is damaged, compressed or too large is refused, and costs little."""

import bz2
import json
import lzma
import zlib
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from tarsy_tasks.broker.messages import DamagedMessage, decode_body, read_message
from tarsy_tasks.broker.received_json import LARGEST_BYTES, read_json


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"headers": {}, "properties": {}}', "[" * 100_000, b"\xff", '{"body": 7}']
)
def test_what_is_no_message_is_not_read(text: str | bytes) -> None:
    with pytest.raises(DamagedMessage):
        read_message(text)


def test_a_message_cannot_ask_for_other_objects() -> None:
    odd = {"__type__": "bytes", "__value__": "aGVsbG8="}
    assert (
        read_message(json.dumps({"body": "", "headers": {"odd": odd}, "properties": {"delivery_tag": "tag"}}))[
            "headers"
        ]["odd"]
        == odd
    )


COMPRESSIONS = ("application/x-gzip", "application/x-bz2", "application/x-lzma")


def compressed(body: bytes, kind: str) -> dict[str, Any]:
    properties = {"body_encoding": "base64", "delivery_tag": "tag"}
    return {"body": b64encode(body).decode(), "headers": {"compression": kind}, "properties": properties}


@pytest.mark.parametrize(
    ("kind", "compress"), list(zip(COMPRESSIONS, (zlib.compress, bz2.compress, lzma.compress), strict=True))
)
def test_a_compressed_body_is_read_if_that_is_allowed(kind: str, compress: Callable[[bytes], bytes]) -> None:
    found = compressed(compress(b"[[], {}, {}]"), kind)
    assert decode_body(found, [kind]) == b"[[], {}, {}]"
    with pytest.raises(DamagedMessage, match="task_compression"):
        decode_body(found, [each for each in COMPRESSIONS if each != kind])
    for damaged in (compress(b"text")[:-1], b"text"):
        with pytest.raises(DamagedMessage):
            decode_body(compressed(damaged, kind), [kind])


def test_what_would_be_too_large_is_not_uncompressed() -> None:
    bomb = compressed(zlib.compress(b" " * (LARGEST_BYTES + 1), 1), "application/x-gzip")
    with pytest.raises(DamagedMessage, match="larger than"):
        decode_body(bomb, COMPRESSIONS)
    with pytest.raises(DamagedMessage, match="none of"):
        decode_body(compressed(b"", "application/zstd"), ["application/zstd"])


def test_lzma_that_asks_for_much_memory_is_refused() -> None:
    properties = 4 * 9 * 5 + 3  # of the old format, with 1 GB for its dictionary
    asking = bytes([properties % 225]) + (1 << 30).to_bytes(4, "little") + b"\xff" * 8 + bytes(32)
    with pytest.raises(DamagedMessage, match="LZMAError"):
        decode_body(compressed(asking, "application/x-lzma"), COMPRESSIONS)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 201 + "]" * 201, '{"a":' * 300 + "1" + "}" * 300])
def test_what_is_nested_too_deep_is_refused(text: str) -> None:
    for written in (text, text.encode()):
        with pytest.raises(ValueError, match="it is n"):
            read_json(written)
    assert read_json("[" * 200 + "]" * 200)
    assert len(read_json(json.dumps([[]] * 1000))) == 1000


@pytest.mark.parametrize("text", [b"[" + b"[]," * 200_000 + b"[]]", "[" + "0," * 200_000 + "0]"])
def test_what_has_very_many_values_is_not_parsed(text: bytes | str) -> None:
    with pytest.raises(ValueError, match="more than 200000 values"):
        read_json(text)
    assert len(read_json(text, most_values=None)) == 200_001
    assert read_json(json.dumps("[," * 200_000)), "a text may hold any characters"

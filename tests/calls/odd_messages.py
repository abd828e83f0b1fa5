"""Messages that no program of ours writes: mutated ones, and generated ones; of tasks, commands and events."""

import bz2
import json
import random
from base64 import b64encode
from typing import Any

from tarsy_tasks.broker.task_names import CALL_TOOL, CHECK_SERVER, LIST_TOOLS

__all__ = ["BOMB", "Generator", "build_message"]

BOMB = bz2.compress(bytes(10_000_000)) * 100
"""5 kB that are 1 GB: streams of bzip2 one after the other."""

_DEEP = json.loads("[" * 150 + "]" * 150)
_NOTHING_FOLLOWS: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_CALL = {"task": CALL_TOOL, "args": ["desk", "echo", {"text": "x"}], "kwargs": {}, "options": {"queue": "mcp.desk"}}
_ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, 1e308, float("inf"), float("nan")),
    *("", "x", "x" * 5000, "\ud83d", "\0", "..", "7", "*", "mcp.desk", "[", "äöü", "9999-12-31T23:59:59.999999+00:00"),
    *("0001-01-01T00:00:00", "2020-01-01T00:00:00Z", "2020-13-01T00:00:00", "now", "celery-task-meta-x\r\n"),
    *([], [[]], [None], [None, None], ["x", 1], {}, {"": ""}, {"a": {"b": [1]}}, [_CALL], _CALL, {"tasks": [_CALL]}),
    *(_DEEP, {"__type__": "decimal", "__value__": "zz"}, {"__type__": "zz", "__value__": 1}),
    *({"__type__": "uuid", "__value__": {"hex": 7}}, {"__type__": "datetime", "__value__": []}),
    *({"__type__": [], "__value__": 1}, {"exchange": "celery", "routing_key": []}, {"is_eager": True}),
]
_KINDS = [
    *("application/json", "application/x-python-serialize", "application/data", "application/text", "text/plain"),
    *("application/x-yaml", "application/x-msgpack", "", "json", None, 7, [], {}),
]
_ENCODINGS = ["utf-8", "binary", "us-ascii", "utf-16", "utf-7", "bz2_codec", "zlib_codec", "rot13", "zz", None, 7, []]
_COMPRESSIONS = [
    "application/x-gzip",
    "application/x-bz2",
    "application/x-lzma",
    "application/zstd",
    "gzip",
    "zz",
    7,
    [1],
]
_HEADERS = [
    *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id"),
    *("parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers"),
    *("stamps", "compression", "clock", "ticket", "hostname", "meth", "chord", "chain", "callbacks", "garbage_at"),
]
_PROPERTIES = [
    *("correlation_id", "reply_to", "delivery_mode", "delivery_info", "priority", "body_encoding", "delivery_tag"),
    *("expiration", "type", "timestamp", "application_headers"),
]
# Those that stop, slow down or reconfigure a worker are an operator's right.
_COMMANDS = ["ping", "active", "reserved", "query_task", "clock", "hello", "mcp_sessions", "objgraph", "zz"]
_EVENTS = ["worker-heartbeat", "worker-online", "worker-offline", "worker-elect", "worker-elect-ack", "task-sent", "zz"]


def build_message(body: Any = None, **headers: Any) -> dict[str, Any]:
    """The message of a call, as Celery writes it; a body that is not bytes is written as JSON."""
    call_id = headers.get("id", "odd")
    given = [["desk", "echo", {"text": "x"}], {}, _NOTHING_FOLLOWS] if body is None else body
    raw = given if isinstance(given, bytes) else json.dumps(given).encode()
    return {
        "body": b64encode(raw).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": CALL_TOOL, "id": call_id, "retries": 0, "timelimit": [None, None], **headers},
        "properties": {
            "correlation_id": call_id,
            "reply_to": "r",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "mcp.desk"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": call_id if isinstance(call_id, str) else "odd",
        },
    }


class Generator:
    """Messages without end, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0

    def task(self) -> bytes:
        """A message for a queue of calls."""
        self._count += 1
        task = self._random.choice([CALL_TOOL, CALL_TOOL, LIST_TOOLS, CHECK_SERVER, "celery.chord_unlock", "zz"])
        body = [["desk", "echo", {"text": "x"}], {}, dict(_NOTHING_FOLLOWS)]
        return self._damage(self._mutate(body), task=task, id=f"odd-{self._count}")

    def command(self) -> bytes:
        """A message for remote control."""
        body: dict[str, Any] = {"method": self._random.choice(_COMMANDS), "arguments": {}, "destination": None}
        body |= {"pattern": None, "matcher": None, "ticket": "t"}
        return self._damage(self._mutate(body), clock=1, expires=0)

    def event(self) -> bytes:
        """A message about another worker."""
        body: dict[str, Any] = {"type": self._random.choice(_EVENTS), "hostname": "other@host", "clock": 1, "freq": 2.0}
        body |= {"utcoffset": 0, "pid": 7, "timestamp": 1.0, "id": "x", "topic": "t", "action": "a", "cver": 1}
        return self._damage(self._mutate(body), hostname="other@host")

    def _odd(self) -> Any:
        return self._random.choice(_ODD)

    def _mutate(self, body: Any) -> Any:
        """Change something in it, at any depth."""
        chance = self._random.random()
        if chance < 0.3:
            return body
        if chance < 0.4 or not body or not isinstance(body, dict | list):
            return self._odd()
        place = self._random.choice(list(body) if isinstance(body, dict) else range(len(body)))
        if chance < 0.5:
            del body[place]
        else:
            body[place] = self._mutate(body[place])
        return body

    def _damage(self, body: Any, **headers: Any) -> bytes:
        choose, raw = self._random.choice, json.dumps(body).encode()
        chance = self._random.random()
        if chance < 0.05:
            raw = choose([b"[" * 100_000, b'{"a":' * 5000, raw[: len(raw) // 2], b"\xff\xfe", b"", BOMB, b"null"])
        message = build_message(raw, **headers)
        for _ in range(self._random.choice([0, 1, 1, 2, 3])):
            part, names = choose([(message["headers"], _HEADERS), (message["properties"], _PROPERTIES)])
            part[choose(names)] = self._odd()
        if self._random.random() < 0.2:
            message["content-type"] = choose(_KINDS)
        if self._random.random() < 0.2:
            message["content-encoding"] = choose(_ENCODINGS)
        if self._random.random() < 0.1:
            message["headers"]["compression"] = choose(_COMPRESSIONS)
        if self._random.random() < 0.1:
            del message[choose(list(message))]
        elif self._random.random() < 0.05:
            message[choose(list(message))] = self._odd()
        text = json.dumps(message).encode()
        if self._random.random() < 0.1:
            cut = self._random.randrange(len(text))
            text = choose([text[:cut], text[:cut] + b"\x00" + text[cut + 1 :], text + text, b"[" * 50_000, b"7"])
        return text

"""Compiled schemas: from the JSON that a server sent to nodes that can be asked, within bounds and from a cache.

Owns references, the bound on a schema's size, and the cache. What each keyword means is said in `keywords` and
`containers`.
"""

import hashlib
import marshal
import re
import threading
from collections import OrderedDict
from typing import Any, cast
from urllib.parse import unquote

from tarsy_tasks.arguments.keywords import KEYWORDS
from tarsy_tasks.arguments.schema import Schema, TooCostlyError

__all__ = ["compile_schema"]

_CACHED_SCHEMAS = 512
_MOST_NODES = 20_000
_cache: OrderedDict[bytes, Schema] = OrderedDict()
_cache_lock = threading.Lock()


def compile_schema(schema: Any) -> Schema:
    """The compiled schema, from a bounded cache where possible.

    Raises:
        TooCostlyError: It is too large or too deep to work with.
    """
    try:
        # Version 0 has no references, so that equal schemas are equal bytes; hashing them costs 2 µs for a usual tool.
        key = hashlib.blake2b(marshal.dumps(schema, 0), digest_size=16).digest()
    except ValueError:
        raise TooCostlyError from None
    with _cache_lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    compiled = _Compiler(schema).compile()
    with _cache_lock:
        _cache[key] = compiled
        if len(_cache) > _CACHED_SCHEMAS:
            _cache.popitem(last=False)
    return compiled


class _Compiler:
    """Turns one document into nodes; every subschema becomes one node, so that recursive schemas are finite."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._identifier = cast("dict[str, Any]", document).get("$id") if isinstance(document, dict) else None
        self._nodes: dict[int, Schema] = {}
        self._waiting: list[tuple[Any, Schema]] = []
        self._anchors: dict[str, Any] | None = None

    def compile(self) -> Schema:
        root = self.node(self._document)
        while self._waiting:
            raw, node = self._waiting.pop()
            self._fill(raw, node)
        return root

    def node(self, raw: Any) -> Schema:
        if id(raw) not in self._nodes:
            if len(self._nodes) >= _MOST_NODES:
                raise TooCostlyError
            self._nodes[id(raw)] = Schema()
            self._waiting.append((raw, self._nodes[id(raw)]))
        return self._nodes[id(raw)]

    def _fill(self, raw: Any, node: Schema) -> None:
        if raw is False:
            node.checks.append(lambda value, path, run: run.found(path, "false", "nothing: it must be left out", value))
        if not isinstance(raw, dict):
            return
        node.raw = cast("dict[str, Any]", raw)
        for keyword, build in KEYWORDS.items():
            if keyword in node.raw and (check := build(node.raw[keyword], node, self)):
                node.checks.append(check)
        if len(node.checks) == 1 and len(node.types) == 1:
            node.only_type = next(iter(node.types))

    def resolve(self, reference: str) -> Any:
        """The subschema that a local reference names, or None."""
        base, _, fragment = reference.partition("#")
        if base and base != self._identifier:
            return None
        if not fragment or fragment.startswith("/"):
            return self._at(unquote(fragment))
        if self._anchors is None:
            self._anchors = {}
            waiting: list[Any] = [self._document]
            for _ in range(_MOST_NODES):
                if not waiting:
                    break
                here = waiting.pop()
                if isinstance(here, dict):
                    here = cast("dict[str, Any]", here)
                    if isinstance(anchor := here.get("$anchor"), str):
                        self._anchors.setdefault(anchor, here)
                    waiting.extend(here.values())
                elif isinstance(here, list):
                    waiting.extend(cast("list[Any]", here))
        return self._anchors.get(fragment)

    def _at(self, pointer: str) -> Any:
        here = self._document
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(here, dict) and step in here:
                here = cast("dict[str, Any]", here)[step]
            elif (
                isinstance(here, list) and re.fullmatch("[0-9]{1,6}", step) and int(step) < len(cast("list[Any]", here))
            ):
                here = cast("list[Any]", here)[int(step)]
            else:
                return None
        return here

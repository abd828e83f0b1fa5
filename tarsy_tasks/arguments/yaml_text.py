"""YAML as models write arguments: its syntax, with the scalars of TARSy.

Owns which YAML is read: no dates, no sexagesimal numbers, no `yes`. It is a guess like pairs, so the reader gives up on
features with a hidden meaning, such as anchors and tags. The library is imported with the first text that may be YAML.
"""

import re
from collections.abc import Callable
from typing import Any, cast

from tarsy_tasks.arguments.almost_json import is_too_deep
from tarsy_tasks.arguments.values import MAX_DEPTH, Written, read_scalar

__all__ = ["read_yaml"]

_YAML_STRUCTURE = re.compile(r":[ \t]*(?:\r?\n|[\[{|>])")
_COMMENT = re.compile(r"[ \t]*#")
_LONGEST_YAML = 65536
"""Characters. YAML parsers are not linear, and arguments of that size are JSON."""


def read_yaml(text: str) -> dict[str, Any] | None:
    """The mapping of a YAML text in which some value is a list, a mapping or a block of text; else None.

    Also None for anchors, aliases, tags, merge keys, repeated keys, and text that YAML would fold or read as a comment.
    """
    if len(text) > _LONGEST_YAML or not _YAML_STRUCTURE.search(text) or is_too_deep(text):
        return None
    import yaml

    library: Any = yaml
    try:
        # libyaml is ten times faster, and not in every wheel.
        loader = getattr(library, "CSafeLoader", library.SafeLoader)(text)
        return _YamlReader(library, text, loader.get_event).document()
    except (yaml.YAMLError, _UnsupportedError, ValueError):
        return None


class _UnsupportedError(Exception):
    """YAML with a feature that is not read here."""


class _YamlReader:
    def __init__(self, yaml: Any, text: str, following: Callable[[], Any]) -> None:
        self._yaml = yaml
        self._text = text
        self._has_comments = "#" in text
        self._following = following
        self._structured = False

    def document(self) -> dict[str, Any] | None:
        for expected in (self._yaml.StreamStartEvent, self._yaml.DocumentStartEvent):
            if not isinstance(self._following(), expected):
                return None
        first = self._following()
        if not isinstance(first, self._yaml.MappingStartEvent):
            return None
        value = self._node(first, 0)
        self._following()
        if not isinstance(self._following(), self._yaml.StreamEndEvent):
            return None
        return value if self._structured else None

    def _node(self, event: Any, depth: int) -> Any:
        kind = cast("type[object]", type(event))
        if kind is self._yaml.AliasEvent or event.anchor or event.tag or depth >= MAX_DEPTH:
            raise _UnsupportedError
        if kind is self._yaml.ScalarEvent:
            return self._scalar(event)
        self._structured |= depth > 0
        return self._sequence(depth + 1) if kind is self._yaml.SequenceStartEvent else self._mapping(depth + 1)

    def _sequence(self, depth: int) -> list[Any]:
        items: list[Any] = []
        following, end, scalar = self._following, self._yaml.SequenceEndEvent, self._yaml.ScalarEvent
        while type(event := following()) is not end:
            is_plain = type(event) is scalar and not event.anchor and not event.tag
            items.append(self._scalar(event) if is_plain else self._node(event, depth))
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        following, end = self._following, self._yaml.MappingEndEvent
        while type(event := following()) is not end:
            if type(event) is not self._yaml.ScalarEvent:
                raise _UnsupportedError
            self._node(event, depth)
            if event.value in members or event.value == "<<":
                raise _UnsupportedError
            members[event.value] = self._node(following(), depth)
        return members

    def _scalar(self, event: Any) -> Any:
        style, value = event.style, event.value
        if style:
            self._structured |= style in "|>"
            if style in "|>\"'":
                if not value and style in "|>":  # cut off behind `content: |`
                    raise _UnsupportedError
                return value
        if " " in value and event.start_mark.line != event.end_mark.line:
            raise _UnsupportedError
        if self._has_comments and _COMMENT.match(self._text, event.end_mark.index):
            raise _UnsupportedError
        return Written(read_scalar(value), value) if value else None

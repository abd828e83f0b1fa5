"""YAML text as data of JSON types, and the place of each key.

Owns all use of the `yaml` module, which is slow to import: import this module only for a YAML file. It does not know
what a configuration looks like. Unlike in PyYAML's loaders, only `true`, `false`, `null` and numbers in JSON's form
are not strings (no dates, no `yes`, no `12:30`), a duplicate key is a problem, and the size of expanded aliases is
limited.
"""

import json
import re

import yaml
from pydantic import JsonValue

from tarsy_tasks.config.problems import KeyPath, Problem

__all__ = ["YamlTree"]

_TAG = "tag:yaml.org,2002:"
_MAX_EXPANDED = 2 * 1024 * 1024
"""Characters of a document with all aliases expanded; a file of the maximum size without aliases has fewer."""


class _Loader(yaml.SafeLoader):
    """PyYAML's scanner and parser with the scalars of JSON."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  replaces PyYAML's table, in which dates and `yes` are not strings


for _type, _pattern, _first in (
    ("null", r"(?:null|~|)$", ("n", "~", "")),
    ("bool", r"(?:true|false)$", ("t", "f")),
    ("int", r"-?(?:0|[1-9][0-9]*)$", tuple("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$", tuple("-0123456789")),
    ("merge", r"<<$", ("<",)),
):
    _Loader.add_implicit_resolver(_TAG + _type, re.compile(_pattern), _first)  # pyright: ignore[reportUnknownMemberType]


class _TooLargeError(Exception):
    """The document with its aliases expanded."""


class YamlTree:
    """A parsed document. It never raises, but collects `problems`: why the text could not be parsed;
    after `read` also problems of its data. Values are not shown."""

    def __init__(self, text: str) -> None:
        self.problems: list[Problem] = []
        self._pairs: dict[int, dict[str, tuple[yaml.Node, yaml.Node]]] = {}
        self._left = _MAX_EXPANDED
        self._root: yaml.Node | None = None
        try:
            self._root = yaml.compose(text, Loader=_Loader)  # pyright: ignore[reportUnknownMemberType]
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._report((), f"not valid YAML: {_describe(error)}", mark.index if mark else 0)
        except yaml.reader.ReaderError as error:
            self._report((), "not valid YAML: found a control character", error.position)
        except (ValueError, OverflowError):
            self._report((), "not valid YAML: an escape or a directive has a number out of range")
        except RecursionError:
            self._report((), "nested too deeply")

    def read(self) -> JsonValue:
        """The data; None when there is none, or a problem prevents reading it."""
        try:
            return None if self._root is None else self._read(self._root, ())
        except RecursionError:
            self._report((), "nested too deeply; does an anchor contain an alias of itself?")
        except _TooLargeError:
            self._report((), "the document is too large with its aliases expanded; use fewer aliases")
        return None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read; there may be comments."""
        return self._root is None

    def find(self, at: KeyPath) -> int | None:
        """The character offset of a key or item, or of the nearest place around it that exists. None without a tree."""
        if self._root is None:
            return None
        node = self._root
        offset = node.start_mark.index
        for key in at:
            if isinstance(node, yaml.MappingNode) and isinstance(key, str) and key in (pairs := self._pairs_of(node)):
                key_node, node = pairs[key]
                offset = key_node.start_mark.index
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                node = node.value[key]
                offset = node.start_mark.index
            else:
                break
        return offset

    def _read(self, node: yaml.Node, at: KeyPath) -> JsonValue:
        self._left -= 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
        if self._left < 0:
            raise _TooLargeError
        if isinstance(node, yaml.ScalarNode):
            return self._read_scalar(node, at)
        if node.tag not in (_TAG + "seq", _TAG + "map"):
            self._report_tag(node, at)
        if isinstance(node, yaml.SequenceNode):
            return [self._read(item, (*at, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        self._report_keys(node, at)
        return {key: self._read(value, (*at, key)) for key, (_, value) in self._pairs_of(node).items()}

    def _read_scalar(self, node: yaml.ScalarNode, at: KeyPath) -> JsonValue:
        match node.tag.removeprefix(_TAG):
            case "str" | "merge":
                pass
            case "null":
                return None
            case "bool" | "int" | "float":
                try:
                    value = json.loads(node.value)
                except ValueError:  # `!!int abc`, or more digits than Python reads
                    value = None
                if isinstance(value, bool | int | float):
                    return value
                self._report(at, "not a number in JSON's form, or one with too many digits", node.start_mark.index)
            case _:
                self._report_tag(node, at)
        return node.value

    def _report_keys(self, node: yaml.MappingNode, at: KeyPath) -> None:
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                text = "found a list or a mapping as a key; put text such as `{{.NAME}}` in quotes"
                self._report(at, text, key.start_mark.index)
            elif key.value in first_lines:
                text = f"duplicate key; it is first given in line {first_lines[key.value]}"
                self._report((*at, key.value), text, key.start_mark.index)
            else:
                first_lines[key.value] = key.start_mark.line + 1
                if key.tag == _TAG + "merge" and not all(isinstance(each, yaml.MappingNode) for each in _merged(value)):
                    self._report(
                        (*at, key.value), "expected an alias of a mapping, or a list of them", key.start_mark.index
                    )

    def _pairs_of(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key and value nodes by key; keys merged by `<<` come last and override nothing."""
        if id(node) not in self._pairs:
            pairs = {key.value: (key, value) for key, value in node.value if _is_text(key)}
            for key, value in node.value:
                if key.tag == _TAG + "merge":
                    for each in _merged(value):
                        if isinstance(each, yaml.MappingNode):
                            pairs = self._pairs_of(each) | pairs
            self._pairs[id(node)] = pairs
        return self._pairs[id(node)]

    def _report_tag(self, node: yaml.Node, at: KeyPath) -> None:
        self._report(at, "found a tag; put text that begins with `!` in quotes", node.start_mark.index)

    def _report(self, at: KeyPath, text: str, offset: int = 0) -> None:
        self.problems.append(Problem(at, text, offset))


def _is_text(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.tag != _TAG + "merge"


def _merged(value: yaml.Node) -> list[yaml.Node]:
    return value.value if isinstance(value, yaml.SequenceNode) else [value]


def _describe(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's message without the alias or tag that it quotes: text that begins with `*` may be a password."""
    problem = error.problem or "unreadable"
    if problem.startswith("found undefined"):
        return f"{problem.partition(chr(39))[0].strip()}; put text that begins with `*` or `!` in quotes"
    if problem.startswith("found character '\\t'"):
        return "found a tab; indent with spaces"
    return problem

"""The shape of a tool's arguments, from its JSON Schema: names, types, alternatives.

Owns the questions that validation does not answer: which properties there are, which are required, what is at a path.
It follows `allOf`, `anyOf`, `oneOf` and references inside the document, within limits, and ignores broken parts. It
checks no value.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, cast
from urllib.parse import unquote

from tarsy_tasks.arguments.values import TYPES

__all__ = ["Pointer", "Shape", "find_near", "fold", "look_up", "read_reference"]

Pointer = tuple[str | int, ...]
_MAX_LAYERS = 64
_NAME_CHARS = 60
_MAX_NAMES = 20


def fold(name: str) -> str:
    """A name without the details that models get wrong: case, underscores, hyphens."""
    return name.casefold().replace("_", "").replace("-", "")


def find_near(name: str, names: Collection[str]) -> str | None:
    """The one of `names` that was probably meant."""
    from difflib import get_close_matches  # only a wrong name needs it

    wanted = fold(name[:_NAME_CHARS])
    folded = {fold(each): each for each in names}
    begins = [each for each in folded if wanted and (each.startswith(wanted) or wanted.startswith(each))]
    close = get_close_matches(wanted, list(folded)[:_MAX_NAMES], 1, 0.75)
    return next((folded[each] for each in (wanted, *begins, *close) if each in folded), None)


def look_up(document: Any, pointer: Sequence[str | int]) -> Any:
    """The value at a pointer in a JSON document, or None."""
    for step in pointer:
        if isinstance(document, dict):
            document = cast("dict[Any, Any]", document).get(step)
        elif isinstance(document, list) and str(step).isdigit() and int(step) < len(cast("list[Any]", document)):
            document = cast("list[Any]", document)[int(step)]
        else:
            return None
    return document


def read_reference(reference: Any) -> Pointer | None:
    """The pointer of a `$ref`, or None when it leaves the document."""
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        return None
    steps = unquote(reference[2:]).split("/") if reference != "#" else []
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


class Shape:
    """A schema, or the part of one at a pointer. `raw` is as the server wrote it; empty when it is not an object."""

    def __init__(self, document: Any, pointer: Pointer = ()) -> None:
        raw = look_up(document, pointer)
        self.raw: dict[str, Any] = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        self.pointer = pointer
        self._document = document
        self._nothing_fits = raw is False

    def _at(self, *steps: str | int) -> "Shape":
        return Shape(self._document, (*self.pointer, *steps))

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types in its own `type`."""
        named: Any = self.raw.get("type")
        listed: list[Any] = cast("list[Any]", named) if isinstance(named, list) else [named]
        return tuple(each for each in listed if isinstance(each, str) and each in TYPES)

    @cached_property
    def members(self) -> list[Any] | None:
        """The values of its enumeration; None without one."""
        if "const" in self.raw:
            return [self.raw["const"]]
        members = self.raw.get("enum")
        return cast("list[Any]", members) if isinstance(members, list) else None

    @cached_property
    def default(self) -> Any:
        """Its default, or that of a part; None without one."""
        return next((layer.raw["default"] for layer in self.applied if layer.raw.get("default") is not None), None)

    @cached_property
    def parts(self) -> list["Shape"]:
        """The schemas that also apply to the value: `allOf` and `$ref`."""
        place = read_reference(self.raw.get("$ref"))
        referred = [] if place is None else [Shape(self._document, place)]
        return referred + self._listed("allOf")

    @cached_property
    def branches(self) -> list["Shape"]:
        """The schemas that may apply to the value: `anyOf` and `oneOf`."""
        return self._listed("anyOf") + self._listed("oneOf")

    def _listed(self, keyword: str) -> list["Shape"]:
        listed = self.raw.get(keyword)
        count = len(cast("list[Any]", listed)) if isinstance(listed, list) else 0
        return [self._at(keyword, number) for number in range(min(count, _MAX_LAYERS))]

    @cached_property
    def applied(self) -> list["Shape"]:
        """Itself and all parts, recursively."""
        return list(self._layers(with_branches=False))

    @cached_property
    def possible(self) -> list["Shape"]:
        """Itself, all parts and all branches, recursively."""
        return list(self._layers(with_branches=True))

    def _layers(self, *, with_branches: bool) -> Iterator["Shape"]:
        seen: set[Pointer] = set()
        waiting = [self]
        while waiting and len(seen) < _MAX_LAYERS:
            layer = waiting.pop(0)
            if layer.pointer not in seen:
                seen.add(layer.pointer)
                yield layer
                waiting += layer.parts + (layer.branches if with_branches else [])

    @cached_property
    def properties(self) -> dict[str, "Shape"]:
        """All named properties, including those of references and alternatives."""
        found: dict[str, Shape] = {}
        for layer in self.possible:
            named = layer.raw.get("properties")
            for name in cast("dict[Any, Any]", named) if isinstance(named, dict) else ():
                if isinstance(name, str):
                    found.setdefault(name, layer._at("properties", name))
        return found

    @cached_property
    def required(self) -> dict[str, None]:
        """The properties that every alternative requires, in their order."""
        lists = [layer.raw.get("required") for layer in self.applied]
        return {
            name: None
            for names in lists
            if isinstance(names, list)
            for name in cast("list[Any]", names)
            if isinstance(name, str)
        }

    @cached_property
    def closed(self) -> bool:
        """No other properties are allowed."""
        return self._nothing_fits or any(layer.raw.get("additionalProperties") is False for layer in self.applied)

    @cached_property
    def items(self) -> "Shape | None":
        """The schema of every item of a list."""
        return self._at("items") if isinstance(self.raw.get("items"), dict) else None

    def takes_text(self) -> bool:
        """Whether a string is allowed, perhaps among other alternatives."""
        return any(
            "string" in layer.types or any(isinstance(each, str) for each in layer.members or ())
            for layer in self.possible
        )

    def at(self, path: Sequence[str | int]) -> "Shape | None":
        """The shape at a path of the value."""
        here: Shape | None = self
        for step in path:
            here = here and here._child(step)
        return here

    def _child(self, step: str | int) -> "Shape | None":
        if isinstance(step, str) and step in self.properties:
            return self.properties[step]
        keyword = "items" if isinstance(step, int) else "additionalProperties"
        return next((each._at(keyword) for each in self.possible if isinstance(each.raw.get(keyword), dict)), None)

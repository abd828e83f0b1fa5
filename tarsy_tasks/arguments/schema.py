"""JSON Schema as far as tool arguments need it: does a value fit, and if not, why.

Owns the reading of an `input_schema` that an MCP server sent. Such a schema is a stranger's: compiling and checking
are bounded, nothing is fetched, and what is broken or unknown in it is passed over, since the server checks its
arguments itself. It knows nothing of text and changes no value.

Why not `jsonschema`: it spends 52 µs on five properties, compares `uniqueItems` pairwise (1.6 s for 1000 objects),
and runs every `pattern`. Its verdict is the reference in the tests. Not checked: `format` (an annotation),
`unevaluatedProperties`, `unevaluatedItems`, `$dynamicRef`, and references that leave the document."""

from collections.abc import Callable
from typing import Any, Final, cast

__all__ = ["MISSING", "TYPES", "Check", "Path", "Problem", "Run", "Schema", "TooCostlyError", "identity", "size"]

TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
}
MISSING: Final = object()

_DEEPEST_CHECK = 450
_FREE_STEPS = 20_000
_STEPS_PER_VALUE = 50


class TooCostlyError(Exception):
    """The schema is too large, too deep or too branched to be checked within bounds."""


class Problem:
    """One way in which a value does not fit.

    Attributes:
        path: Property names and list positions from the top.
        kind: The keyword that refused.
        expected: In words.
        given: The value that was refused, or MISSING.
    """

    __slots__ = ("expected", "given", "kind", "path")

    def __init__(self, path: tuple[str | int, ...], kind: str, expected: str, given: Any) -> None:
        self.path = path
        self.kind = kind
        self.expected = expected
        self.given = given


class Run:
    """One check of `value`: what it found, and how much work is left to it."""

    __slots__ = ("_value", "depth", "most_problems", "problems", "steps_left")

    def __init__(self, most_problems: int, value: Any) -> None:
        self.problems: list[Problem] = []
        self.most_problems = most_problems
        self.steps_left = _FREE_STEPS
        self.depth = 0
        self._value = value

    def spend(self, steps: int) -> None:
        """Takes `steps` off what is left; a large value has more to spend.

        Raises:
            TooCostlyError: Nothing is left.
        """
        self.steps_left -= steps
        if self.steps_left < 0:
            self.steps_left += _STEPS_PER_VALUE * size(self._value)
            self._value = None
            if self.steps_left < _STEPS_PER_VALUE:
                raise TooCostlyError

    def found(self, path: tuple[str | int, ...], kind: str, expected: str, given: Any) -> None:
        self.problems.append(Problem(path, kind, expected, given))

    @property
    def full(self) -> bool:
        return len(self.problems) >= self.most_problems

    def fits(self, node: "Schema", value: Any) -> bool:
        """Whether the value fits a subschema, at the expense of the same run."""
        problems, most = self.problems, self.most_problems
        self.problems, self.most_problems = [], 1
        try:
            node.check(value, (), self)
            return not self.problems
        finally:
            self.problems, self.most_problems = problems, most


Path = tuple[str | int, ...]
Check = Callable[[Any, Path, Run], None]


class Schema:
    """A compiled schema, or a part of one.

    Attributes:
        raw: The schema as the server wrote it; an empty one when it was unusable.
        types: The types that it names, empty when it names none.
        properties: Subschemas by property name.
        required: The properties that must be there.
        items: Subschema of list items, if there is one for all.
        additional: Subschema of properties that have no name of their own; None: nothing is said.
        closed: No other properties are allowed.
        members: The values of `enum` or `const`, None without.
        parts: Subschemas that apply to the same value: `allOf` and `$ref`.
        branches: Subschemas of which one applies: `anyOf` and `oneOf`.
        checks: What is checked, in this order.
        only_type: The one type, where nothing else is checked.
    """

    __slots__ = (
        "additional",
        "branches",
        "checks",
        "closed",
        "items",
        "members",
        "only_type",
        "parts",
        "properties",
        "raw",
        "required",
        "types",
    )

    def __init__(self) -> None:
        self.raw: dict[str, Any] = {}
        self.types: frozenset[str] = frozenset()
        self.properties: dict[str, Schema] = {}
        self.required: tuple[str, ...] = ()
        self.items: Schema | None = None
        self.additional: Schema | None = None
        self.closed = False
        self.members: list[Any] | None = None
        self.parts: list[Schema] = []
        self.branches: list[Schema] = []
        self.checks: list[Check] = []
        self.only_type: str | None = None

    def check(self, value: Any, path: Path, run: Run) -> None:
        run.spend(1)
        run.depth += 1
        if run.depth > _DEEPEST_CHECK:
            raise TooCostlyError
        for check in self.checks:
            check(value, path, run)
            if len(run.problems) >= run.most_problems:
                break
        run.depth -= 1

    def check_part(self, value: Any, path: Path, step: str | int, run: Run) -> None:
        """Checks the value at `step` of what is at `path`; most are scalars that fit."""
        if self.only_type is not None and TYPES[self.only_type](value):
            run.steps_left -= 1
        else:
            self.check(value, (*path, step), run)

    def fits(self, value: Any) -> bool:
        """Whether `value` fits.

        Raises:
            TooCostlyError: Finding out would take too long.
        """
        return not self.problems(value, 1)

    def problems(self, value: Any, most: int) -> list[Problem]:
        """What is wrong with `value`, at most `most` things.

        Raises:
            TooCostlyError: Finding out would take too long.
        """
        run = Run(most, value)
        try:
            self.check(value, (), run)
        except RecursionError:
            raise TooCostlyError from None
        return run.problems


def size(value: Any) -> int:
    """How many values there are in `value`."""
    if not isinstance(value, dict | list):
        return 1
    parts = cast("list[Any]", list(cast("dict[str, Any]", value).values()) if isinstance(value, dict) else value)
    return 1 + len(parts) + sum(size(part) - 1 for part in parts if isinstance(part, dict | list))


def identity(value: Any) -> Any:
    """Something hashable that is equal for values that JSON Schema calls equal: 1 and 1.0, but not 1 and true."""
    if isinstance(value, bool):
        return (bool, value)
    if isinstance(value, dict):
        return (dict, frozenset((key, identity(item)) for key, item in cast("dict[str, Any]", value).items()))
    if isinstance(value, list):
        return (list, *map(identity, cast("list[Any]", value)))
    return value

"""A tool's JSON Schema: whether a value fits, and if not, why.

Owns the use of the validator, `jsonschema-rs`. The schema comes from the server and is not trusted: nothing is fetched,
patterns run in an engine of linear time, and work is bounded. What cannot be checked like this is not checked, because
the server checks its arguments anyway. The library is imported with the first schema: agents import this package
without checking anything.
"""

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from tarsy_tasks.arguments.cost import UncheckedError, is_always_cheap, size, spend
from tarsy_tasks.arguments.dialects import read_dialect, without_patterns
from tarsy_tasks.arguments.shape import Pointer, Shape

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator, ValidatorMap

__all__ = ["Schema", "UncheckedError", "compile_schema", "is_compiled"]

_CACHED_SCHEMAS = 2048
_MAX_PARTS = 5000
_PATTERN_BYTES = 1_000_000
"""Of a compiled pattern; most have a few kilobytes."""

_schemas: "OrderedDict[int, tuple[Any, Schema]]" = OrderedDict()
_lock = Lock()


def is_compiled(schema: Mapping[str, Any]) -> bool:
    """Whether arguments can be read with a schema without compiling it first, which may take milliseconds."""
    return id(schema) in _schemas


def compile_schema(schema: Mapping[str, Any] | bool) -> "Schema":
    """The compiled schema. Compiling costs far more than checking, so the schemas in use are cached; by their
    identity, so they must not change."""
    key = id(schema)
    with _lock:
        if known := _schemas.get(key):
            # The entry keeps the schema alive, so no other object can get its id.
            _schemas.move_to_end(key)
            return known[1]
    compiled = Schema(schema if isinstance(schema, bool | dict) else dict(schema))
    with _lock:
        _schemas[key] = (schema, compiled)
        if len(_schemas) > _CACHED_SCHEMAS:
            _schemas.popitem(last=False)
    return compiled


class Schema:
    """A compiled schema. Every check raises `UncheckedError` when a value cannot be checked. `raw` is as the server
    wrote it, but for keywords of other dialects."""

    def __init__(self, raw: dict[str, Any] | bool) -> None:
        self.raw: Any = read_dialect(raw)
        self.shape = Shape(self.raw)
        self._is_cheap = is_always_cheap(self.raw)
        self._checked = self.raw
        self._validator = _compile(self._checked)
        if self._validator is None:
            self._checked = without_patterns(self._checked)
            self._validator = _compile(self._checked)

    def fits(self, value: Any, pointer: Pointer = ()) -> bool:
        """Whether a value fits the schema, or the part of it at `pointer`."""
        return self._checker(value, pointer).is_valid(value)

    def first_problem(self, value: Any, pointer: Pointer = ()) -> "ValidationError | None":
        """The first problem of a value: cheap, however many there are."""
        from jsonschema_rs import ValidationError

        try:
            self._checker(value, pointer).validate(value)
        except ValidationError as problem:
            return problem
        return None

    def all_problems(self, value: Any, pointer: Pointer = ()) -> "list[ValidationError]":
        """All problems of a value; some microseconds each, so not for large values."""
        return list(self._checker(value, pointer).iter_errors(value))

    def _checker(self, value: Any, pointer: Pointer) -> "Validator":
        if self._validator is None:
            raise UncheckedError
        if not self._is_cheap:
            spend(self.raw, pointer, value)
        if not pointer:
            return self._validator
        found = self._parts.get("#" + "".join(f"/{_escaped(step)}" for step in pointer)) if self._parts else None
        if found is None:
            raise UncheckedError
        return found

    @cached_property
    def _parts(self) -> "ValidatorMap | None":
        import jsonschema_rs

        if size(self.raw) > _MAX_PARTS:
            return None
        return jsonschema_rs.validator_map_for(self._checked, **_options())


def _options() -> Any:
    from jsonschema_rs import RegexOptions

    return {
        # By default it fetches references over HTTP or from files of this machine.
        "offline": True,
        "validate_formats": False,
        "mask": "it",
        "pattern_options": RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES),
    }


def _compile(schema: Any) -> "Validator | None":
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, **_options())
    except (ValueError, RecursionError, jsonschema_rs.ReferencingError):
        return None


def _escaped(step: str | int) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")

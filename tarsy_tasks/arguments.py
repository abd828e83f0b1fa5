"""The arguments of a call: from what a model wrote to a JSON object that fits the tool's schema.

Owns reading and checking. It does no I/O and knows neither servers nor tools. `jsonschema` is imported with the first
schema: agents import this module and check nothing.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.outcomes import ErrorCode

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

__all__ = ["parse_arguments"]

_MOST_PROBLEMS = 5
_SHOWN_LIMIT = 300
_CACHED_SCHEMAS = 2048

_validators: "OrderedDict[int, tuple[Mapping[str, Any], Validator | None]]" = OrderedDict()
_validators_lock = Lock()


def parse_arguments(text: Any, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of a call.

    Args:
        text: A JSON object as text, or already as a mapping. None and an empty text are no arguments.
        schema: JSON Schema of the tool's arguments; None when it is not known, and then nothing is checked. It must not
            change afterwards.

    Returns:
        A JSON-safe object.

    Raises:
        ArgumentsError: They are no JSON object, or do not fit. The text is for a model; nothing was sent.
    """
    arguments = _read(text, schema)
    validator = None if schema is None else _validator(schema)
    if validator is not None and (problems := _find_problems(validator, arguments)):
        raise _refuse([f"`{_place(problem)}`: {problem.message[:_SHOWN_LIMIT]}" for problem in problems], schema)
    return arguments


def _read(given: Any, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    value: Any = given
    if isinstance(given, str):
        try:
            value = json.loads(given, parse_constant=_refuse_constant) if given.strip() else {}
        except (ValueError, RecursionError) as error:
            raise _refuse([f"they are no JSON: {error}"], schema) from None
    if not isinstance(value, dict):
        raise _refuse([f"a JSON object is due, found {type(value).__name__}"], schema)
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        # Half of a character, for instance: it would break the connection for everybody.
        raise _refuse([f"they hold something that is not JSON: {type(error).__name__}"], schema) from None
    return cast("dict[str, Any]", value)


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _refuse(problems: list[str], schema: Mapping[str, Any] | None) -> ArgumentsError:
    lines = ["The arguments cannot be used. Nothing was sent. Mend this and call again:", *(f"- {p}" for p in problems)]
    if schema and isinstance(schema.get("properties"), Mapping):
        lines.append(f"The tool takes: {json.dumps(schema['properties'])[: 4 * _SHOWN_LIMIT]}")
        lines.append(f"Required: {', '.join(map(str, schema.get('required') or ())) or 'nothing'}")
    return ArgumentsError(ErrorCode.INVALID_ARGUMENTS, "\n".join(lines))


def _find_problems(validator: "Validator", arguments: dict[str, Any]) -> list[Any]:
    from referencing.exceptions import Unresolvable

    try:
        return list(islice(cast("Iterable[Any]", validator.iter_errors(arguments)), _MOST_PROBLEMS))
    except (Unresolvable, RecursionError):
        # A reference that leads nowhere, or in circles: the server will have to check its arguments itself.
        return []


def _place(problem: Any) -> str:
    return ".".join(map(str, problem.absolute_path)) or "arguments"


def _validator(schema: Mapping[str, Any]) -> "Validator | None":
    """The compiled schema; compiling costs far more than checking. None for a schema that is none itself."""
    key = id(schema)
    with _validators_lock:
        if key in _validators:
            # The entry holds the schema, so that no other object can have its id.
            return _validators[key][1]
    validator = _compile(schema)
    with _validators_lock:
        _validators[key] = (schema, validator)
        if len(_validators) > _CACHED_SCHEMAS:
            _validators.popitem(last=False)
    return validator


def _compile(schema: Mapping[str, Any]) -> "Validator | None":
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    kind: Any = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError:
        # The server has broken its own schema; it will have to check its arguments itself.
        return None
    # An empty registry: a reference that leaves the schema is not fetched.
    return kind(schema, registry=cast("Any", Registry)())

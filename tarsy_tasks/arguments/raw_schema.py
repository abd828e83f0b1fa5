"""Reading a schema that may be broken: every question has an answer, and what makes no sense is not there."""

from typing import Any, Protocol, cast

from tarsy_tasks.arguments.schema import Schema

__all__ = ["Document", "is_bound", "is_count", "is_number", "schemas_by_name", "schemas_in", "strings"]


class Document(Protocol):
    """The schema as a whole, for keywords that hold or name other schemas."""

    def node(self, raw: Any) -> Schema:
        """The node of a subschema."""
        ...

    def resolve(self, reference: str) -> Any:
        """The subschema that a local reference names, or None."""
        ...


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_bound(value: Any) -> bool:
    """A number of a schema that is worth comparing with."""
    return is_number(value) and abs(value) < 1e300


def is_count(value: Any) -> bool:
    return is_bound(value) and value >= 0


def strings(value: Any) -> list[str]:
    return [each for each in cast("list[Any]", value) if isinstance(each, str)] if isinstance(value, list) else []


def schemas_in(value: Any) -> list[Any]:
    return (
        [each for each in cast("list[Any]", value) if isinstance(each, dict | bool)] if isinstance(value, list) else []
    )


def schemas_by_name(value: Any) -> dict[str, Any]:
    items = cast("dict[Any, Any]", value).items() if isinstance(value, dict) else ()
    return {key: each for key, each in items if isinstance(key, str) and isinstance(each, dict | bool)}

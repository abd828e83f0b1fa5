"""A Python function as a tool.

Owns the definition, from the annotations of the function, and how its arguments and what it returns are converted. It
neither runs the function nor masks anything: that is different where it runs.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, to_jsonable_python

from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.native.mark import NativeMark, find_mark
from tarsy_tasks.tool_names import listed_name

__all__ = ["NativeTool", "NotJson", "build_native_tool", "write_json"]

_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MOST_PROBLEMS = 5
_ERROR_CHARS = 2000
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class NotJson(Exception):
    """A value that JSON does not have."""


@dataclass(frozen=True, eq=False)
class NativeTool:
    """A function that is a tool.

    Attributes:
        definition: As `list_tools` lists it.
        function: It may be a coroutine function.
        arguments: Validates its arguments; the fields have the parameters as aliases.
    """

    definition: ToolDefinition
    function: Callable[..., Any]
    arguments: type[BaseModel]

    def read_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of the function. Raises `ValueError`, with what is wrong for a model, if they do not
        have its types."""
        try:
            read = self.arguments.model_validate(arguments)
        except ValidationError as error:
            problems = error.errors()[:_MOST_PROBLEMS]
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in problems)
            text = f"The arguments of `{self.definition.name}` are not valid, so it was not called: {wrong}."
            raise ValueError(text) from error
        fields = self.arguments.model_fields
        return {cast("str", fields[field].alias): getattr(read, field) for field in read.model_fields_set}

    def describe_error(self, error: BaseException) -> str:
        """For a model, what the function raised; it may have secrets."""
        return f"`{self.definition.name}` ran and raised an error: {type(error).__name__}: {error}"[:_ERROR_CHARS]

    def describe_not_json(self, value: object) -> str:
        """For a model, that the function returned something that `write_json` refuses."""
        return (
            f"`{self.definition.name}` ran, but it returned a {type(value).__name__}, which is not valid JSON. Call it "
            "again only if that is harmless; its author has to change what it returns."
        )


def write_json(value: Any) -> tuple[str, JsonValue]:
    """A value as JSON text, and as the JSON value that this is.

    Raises:
        NotJson: It cannot be written as JSON.
    """
    try:
        structured: JsonValue = to_jsonable_python(value)
        return _encode(structured), structured
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise NotJson(str(error)) from error


def build_native_tool(
    function: Callable[..., Any], server: str, name: str | None = None, description: str | None = None
) -> NativeTool:
    """What a function is as a tool.

    Args:
        server: The part of its name before the dot.
        name: The other part; None: that of its mark, or else the name of the function.
        description: For models; None: that of its mark, or else its docstring.

    Raises:
        ValueError: The name cannot be that of a tool, or a parameter cannot have a JSON Schema.
    """
    mark = find_mark(function) or NativeMark()
    tool = next(each for each in (name, mark.name, getattr(function, "__name__", "")) if each is not None)
    if not tool or listed_name(tool) != tool:
        raise ValueError(f"{tool!r} cannot be the name of a tool; give one of letters, digits, `_`, `-`, `.` and `/`")
    where = f"the function of the tool `{server}.{tool}`"
    model = _build_model(function, where)
    try:
        schema = model.model_json_schema(by_alias=True)
    except (PydanticUserError, ValueError, TypeError) as error:
        raise ValueError(f"{where} has a parameter without a JSON Schema: {error}") from error
    schema.pop("title", None)
    for each in schema.get("properties", {}).values():
        each.pop("title", None)
    schema.setdefault("properties", {})
    described = next(each for each in (description, mark.description, inspect.getdoc(function), "") if each is not None)
    hints = {"readOnlyHint": mark.read_only, "idempotentHint": mark.idempotent}
    definition = ToolDefinition(
        name=f"{server}.{tool}",
        server=server,
        tool=tool,
        description=described,
        input_schema=schema,
        annotations={hint: True for hint, is_given in hints.items() if is_given},
    )
    return NativeTool(definition, function, model)


def _build_model(function: Callable[..., Any], where: str) -> type[BaseModel]:
    """A model of the parameters. They are aliases, because a field cannot have every name."""
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ValueError(f"{where} has annotations that cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        if parameter.kind not in _KINDS:
            raise ValueError(f"{where} has the parameter `{parameter}`; each needs a name by which it is given")
        if isinstance(parameter.default, FieldInfo):
            raise ValueError(f"{where}: write `{parameter.name}: Annotated[…, Field(…)]`, and the default after it")
        default: Any = ... if parameter.default is parameter.empty else parameter.default
        fields[f"argument_{number}"] = (hints.get(parameter.name, Any), Field(default, alias=parameter.name))
    try:
        return create_model("Arguments", __config__=ConfigDict(extra="forbid", title=None), **fields)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise ValueError(f"{where} has a parameter of a type that pydantic does not know: {error}") from error

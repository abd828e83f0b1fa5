"""Functions of the agent as tools: what `@tools.native` makes of one.

Owns the definition, from the annotations of the function, and what becomes of its arguments and of what it returns. It
runs them in the thread of its caller; who that is, and for how long, is in `native_calls`.
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

from tarsy_tasks.errors import ArgumentsError, CallError
from tarsy_tasks.models import ToolDefinition, ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.tool_names import listed_name

__all__ = ["NativeTool", "build_native_tool"]

_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_RESULT_CHARS = 1024 * 1024
_ERROR_CHARS = 2000
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


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

    def call(self, arguments: Mapping[str, Any], facts: Mapping[str, Any], finish: Callable[[Any], Any]) -> ToolResult:
        """Call the function and give its result, masked.

        Args:
            arguments: As they were read by the schema.
            facts: More fields of the result.
            finish: Waits for what can be awaited.

        Raises:
            ArgumentsError: The arguments do not have the types of the function. It was not called.
            CallError: It raised, or returned something that is not JSON.
        """
        name = self.definition.name
        values = self._read(arguments)
        try:
            value = finish(self.function(**values))
        except Exception as error:
            why = _mask(f"{type(error).__name__}: {error}"[:_ERROR_CHARS])
            raise CallError(ErrorCode.TOOL_ERROR, f"`{name}` ran and raised an error: {why}") from error
        try:
            return _build_result(value, facts)
        except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
            raise CallError(
                ErrorCode.INVALID_RESULT,
                f"`{name}` ran, but it returned a {type(value).__name__}, which is not valid JSON. Call it again only "
                "if that is harmless; its author has to change what it returns.",
            ) from error

    def _read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            read = self.arguments.model_validate(arguments)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
            text = f"The arguments of `{self.definition.name}` are not valid, so it was not called: {_mask(wrong)}."
            raise ArgumentsError(ErrorCode.INVALID_ARGUMENTS, text) from error
        fields = self.arguments.model_fields
        return {cast("str", fields[field].alias): getattr(read, field) for field in read.model_fields_set}


def build_native_tool(
    function: Callable[..., Any], server: str, name: str | None = None, description: str | None = None
) -> NativeTool:
    """What a function is as a tool.

    Args:
        server: The part of its name before the dot.
        name: The other part; None: the name of the function.
        description: For models; None: its docstring.

    Raises:
        ValueError: The name cannot be that of a tool, or a parameter cannot have a JSON Schema.
    """
    tool = getattr(function, "__name__", "") if name is None else name
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
    definition = ToolDefinition(
        name=f"{server}.{tool}",
        server=server,
        tool=tool,
        description=(inspect.getdoc(function) or "") if description is None else description,
        input_schema=schema,
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


def _build_result(value: Any, facts: Mapping[str, Any]) -> ToolResult:
    from tarsy_tasks.masking.masker import build_masker

    if value is None:
        return ToolResult(content="", **facts)
    if isinstance(value, str):
        return ToolResult(content=_cut(_mask(value)), content_types=("text",), **facts)
    structured: JsonValue = build_masker().mask_json(to_jsonable_python(value))
    content = _encode(structured)
    return ToolResult(
        content=_cut(content),
        structured=structured if len(content) <= _RESULT_CHARS else None,
        content_types=("text",),
        **facts,
    )


def _mask(text: str) -> str:
    from tarsy_tasks.masking.masker import mask_text

    return mask_text(text)


def _cut(text: str) -> str:
    if len(text) <= _RESULT_CHARS:
        return text
    return f"{text[:_RESULT_CHARS]}\n[{len(text) - _RESULT_CHARS} characters are left out here; ask for less]"

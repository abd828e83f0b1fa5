"""Tools that the SDK would refuse, and with them the whole page of tools/list.

Owns leaving them out of a result before the SDK reads it, and which they were.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from mcp_types import ListToolsResult, Tool
from mcp_types.methods import SERVER_RESULTS
from pydantic import TypeAdapter, ValidationError

__all__ = ["find_left_out", "leave_out_invalid"]

_LEFT_OUT = "tarsy-tasks/left-out"
"""In the `_meta` of the result: names and reasons. A server's own key of this name is removed."""
_OLDEST_VERSION = "2025-11-25"
"""The SDK checks all versions up to this one alike."""
_KEPT = 50


def leave_out_invalid(result: dict[str, Any], version: str) -> None:
    """Remove the tools of a tools/list result that are not valid in a version of MCP."""
    tools, meta = result.get("tools"), result.get("_meta")
    if isinstance(meta, dict):
        cast("dict[str, Any]", meta).pop(_LEFT_OUT, None)
    if not isinstance(tools, list):
        return  # then the SDK refuses all of it
    reasons = [_find_damage(each, version) for each in cast("list[Any]", tools)]
    if any(reasons) and isinstance(meta, dict | None):
        found = zip(cast("list[Any]", tools), reasons, strict=True)
        left_out = {_name_of(tool, number): why for number, (tool, why) in enumerate(found, start=1) if why}
        result["tools"] = [tool for tool, why in zip(cast("list[Any]", tools), reasons, strict=True) if not why]
        result["_meta"] = {**(meta or {}), _LEFT_OUT: dict([*left_out.items()][:_KEPT])}


def find_left_out(page: ListToolsResult) -> Mapping[str, str]:
    """Which tools were left out of a page, and why; at most 50. The server wrote both."""
    return cast("Mapping[str, Any]", page.meta or {}).get(_LEFT_OUT, {})


def _find_damage(tool: Any, version: str) -> str:
    try:
        # As the SDK does: first by the rules of the version, then by those of all versions.
        rules = _rules_of(version)
        rules.dump_python(rules.validate_python([tool], by_name=False), by_alias=True, mode="json")
        Tool.model_validate(tool, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"] if part != 0)
        return f"{place}: {first['msg']}" if place else first["msg"]
    except (ValueError, RecursionError) as error:
        return f"it cannot be read ({type(error).__name__})"
    return ""


def _name_of(tool: Any, number: int) -> str:
    name: Any = cast("dict[str, Any]", tool).get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) and name else f"number {number}"


@cache
def _rules_of(version: str) -> TypeAdapter[Any]:
    key = ("tools/list", version)
    result: Any = SERVER_RESULTS.get(key) or SERVER_RESULTS["tools/list", _OLDEST_VERSION]
    return TypeAdapter(result.model_fields["tools"].annotation)

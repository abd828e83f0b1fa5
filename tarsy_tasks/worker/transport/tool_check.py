"""Tools that the SDK would refuse, and with them the whole page of tools/list.

Owns leaving them out of a result before the SDK reads it, and which they were; and a digest of what the server said, by
which a list that is the same as before is known.
"""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Any, cast

from mcp_types import ListToolsResult, Tool
from mcp_types.methods import SERVER_RESULTS
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

__all__ = ["digest_of", "find_left_out", "leave_out_invalid"]

_DIGEST = "tarsy-tasks/digest"
_LEFT_OUT = "tarsy-tasks/left-out"
"""In the `_meta` of the result: a digest of the server's own tools; names and reasons. A server's own keys of these
names are removed."""
_OLDEST_VERSION = "2025-11-25"
"""The SDK checks all versions up to this one alike."""
_KEPT = 50


def leave_out_invalid(result: dict[str, Any], version: str) -> None:
    """Remove the tools of a tools/list result that are not valid in a version of MCP."""
    tools, meta = result.get("tools"), result.get("_meta")
    if isinstance(meta, dict):
        for key in (_DIGEST, _LEFT_OUT):
            cast("dict[str, Any]", meta).pop(key, None)
    if not (isinstance(tools, list) and isinstance(meta, dict | None)):
        return  # then the SDK refuses all of it
    added: dict[str, Any] = {_DIGEST: _digest(cast("list[Any]", tools))}
    reasons = [_find_damage(each, version) for each in cast("list[Any]", tools)]
    if any(reasons):
        found = zip(cast("list[Any]", tools), reasons, strict=True)
        left_out = {_name_of(tool, number): why for number, (tool, why) in enumerate(found, start=1) if why}
        result["tools"] = [tool for tool, why in zip(cast("list[Any]", tools), reasons, strict=True) if not why]
        added[_LEFT_OUT] = dict([*left_out.items()][:_KEPT])
    result["_meta"] = {**(meta or {}), **added}


def find_left_out(page: ListToolsResult) -> Mapping[str, str]:
    """Which tools were left out of a page, and why; at most 50. The server wrote both."""
    return cast("Mapping[str, Any]", page.meta or {}).get(_LEFT_OUT, {})


def digest_of(page: ListToolsResult) -> str:
    """The same for pages with the same tools; empty if it is not known."""
    return cast("Mapping[str, Any]", page.meta or {}).get(_DIGEST, "")


def _digest(tools: list[Any]) -> str:
    try:
        return sha256(to_json(tools)).hexdigest()
    except ValueError:  # half a character
        return ""


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

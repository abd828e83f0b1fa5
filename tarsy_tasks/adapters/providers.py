"""What providers of models refuse in the definition of a tool, and how it is changed before the request.

One bad definition fails a whole request, whatever the user asked. Owns the limits of each provider and the changes to a
schema. A change may say less than the schema of the MCP server, and requires nothing more: workers check the arguments
against the server's own. What cannot be fixed raises `UnfitTool`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["ANTHROPIC", "ANY", "GEMINI", "OPENAI", "Provider", "UnfitTool", "fit_description", "fit_schema"]

_DEPTH = 64
_NODES = 10_000
_HINT_CHARS = 300
_DEFINITIONS = "#/$defs/"
_SCHEMAS = frozenset({"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_ALTERNATIVES = ("anyOf", "oneOf")
_NOT_AT_ROOT = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "not", "oneOf"})
_SAYS_NO_MORE = ("additionalProperties", "unevaluatedProperties")


@dataclass(frozen=True)
class Provider:
    """What a provider takes. A name is never longer than 64 of the characters `A-Z a-z 0-9 _ -`, which fits all.

    Attributes:
        name: For texts.
        most_tools: Of one request; None: no limit is known.
        description_chars: Of a tool; None: no limit is known.
        property_name: What the name of a parameter has to match.
        keywords: Those of JSON Schema that are known; None: all.
        media: MIME types that the result of a tool may have, beside text.
    """

    name: str
    most_tools: int | None = None
    description_chars: int | None = None
    property_name: re.Pattern[str] | None = None
    keywords: frozenset[str] | None = None
    media: frozenset[str] = frozenset()


_IMAGES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})

OPENAI = Provider("OpenAI", most_tools=128, description_chars=1024, media=_IMAGES | {"application/pdf"})
"""Chat completions and Responses, as their answers of status 400 say (`invalid_function_parameters`,
`array_above_max_length`, `string_above_max_length`)."""
ANTHROPIC = Provider(
    "Anthropic",
    property_name=re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII),
    media=_IMAGES | {"application/pdf"},
)
"""The Messages API, as its answers of status 400 say (`invalid_request_error`)."""
GEMINI = Provider(
    "Gemini",
    keywords=frozenset(
        {
            "$defs",
            "$ref",
            "additionalProperties",
            "anyOf",
            "description",
            "enum",
            "format",
            "items",
            "maxItems",
            "maximum",
            "minItems",
            "minimum",
            "oneOf",
            "prefixItems",
            "properties",
            "required",
            "type",
        }
    ),
    media=frozenset({"image/jpeg", "image/png", "image/webp", "application/pdf"}),
)
"""`parameters_json_schema`, with the keywords that the Gemini API documents for it."""
ANY = Provider("this model", media=_IMAGES | {"application/pdf"})
"""Frameworks send a tool to any provider, and fix some things themselves."""


class UnfitTool(Exception):
    """A definition that its provider would refuse, and why."""


def fit_description(text: str, hint: str, provider: Provider) -> str:
    """A description that the provider takes, with the hint of `fit_schema`; one that is cut has an ellipsis."""
    hint = f" {hint}" if hint else ""
    limit = provider.description_chars
    if limit is not None and len(text) + len(hint) > limit:
        text = f"{text[: limit - 1 - len(hint)]}…"
    return f"{text}{hint}".strip()


def fit_schema(schema: Mapping[str, Any], provider: Provider) -> tuple[dict[str, Any], str]:
    """The schema of a tool's arguments as a provider takes it.

    At the root, `$ref` and combinations such as `oneOf` become one object with all their properties. It has the type
    `object` and has `properties`; arrays have `items`.

    Returns:
        The schema; and for its tool's description, which properties belong together, if that was in the combinations.

    Raises:
        UnfitTool: It cannot be fixed.
    """
    fitting = _Fitting(provider, schema)
    root, hint = fitting.flatten(dict(schema))
    if root.get("type", "object") not in ("object", ["object"]) and "object" not in _list(root.get("type")):
        raise UnfitTool(f"its arguments are not an object but {root['type']!r:.80}")
    root = fitting.fit({**root, "type": "object", "properties": _map(root.get("properties"))})
    if provider.property_name is not None:
        _leave_out_properties(root, provider)
    return root, hint


def _find(reference: str, root: Mapping[str, Any]) -> dict[str, Any]:
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = _map(found).get(part.replace("~1", "/").replace("~0", "~"))
    if not reference.startswith("#") or not isinstance(found, dict):
        raise UnfitTool(f"its schema refers to {reference!r:.80}, which is not in it")
    return cast("dict[str, Any]", found)


class _Fitting:
    """The changes below the root of one schema."""

    def __init__(self, provider: Provider, schema: Mapping[str, Any]) -> None:
        self._keywords = provider.keywords
        self._schema = schema
        self._left = _NODES

    def flatten(self, node: dict[str, Any], depth: int = _DEPTH) -> tuple[dict[str, Any], str]:
        """A schema without combinations at its top, and what that leaves to say."""
        self._count(depth)
        if _NOT_AT_ROOT.isdisjoint(node):
            return node, ""
        merged = {key: value for key, value in node.items() if key not in _NOT_AT_ROOT and key not in _SAYS_NO_MORE}
        merged["properties"] = dict(_map(node.get("properties")))
        required = _list(node.get("required"))
        every = [_find(node["$ref"], self._schema)] if isinstance(node.get("$ref"), str) else []
        for branch in (*every, *_branches(node.get("allOf"))):
            found, _ = self.flatten(branch, depth - 1)
            merged = {**found, **merged, "properties": {**_map(found.get("properties")), **merged["properties"]}}
            required += _list(found.get("required"))
        hints: list[str] = []
        for keyword in _ALTERNATIVES:
            branches = [self.flatten(each, depth - 1)[0] for each in _branches(node.get(keyword))]
            for name in dict.fromkeys(name for branch in branches for name in _map(branch.get("properties"))):
                readings = [branch["properties"][name] for branch in branches if name in _map(branch.get("properties"))]
                different = [each for number, each in enumerate(readings) if each not in readings[:number]]
                merged["properties"].setdefault(name, different[0] if len(different) == 1 else {"anyOf": different})
            groups = [[name for name in _list(branch.get("required")) if name not in required] for branch in branches]
            if len(groups) > 1 and any(groups):
                required += [name for name in groups[0] if all(name in group for group in groups)]
                rest = [" and ".join(f"`{name}`" for name in group if name not in required) for group in groups]
                hints += [f"Give {', or '.join(each for each in rest if each)}."] if all(rest) else []
            elif groups:
                required += groups[0]
        if required:
            merged["required"] = list(dict.fromkeys(map(str, required)))
        hint = " ".join(hints)
        return merged, hint if len(hint) <= _HINT_CHARS else ""

    def fit(self, node: Any, depth: int = _DEPTH, inside: frozenset[str] = frozenset()) -> Any:
        """A schema as the provider takes it; `inside` are the references on the way to it."""
        self._count(depth)
        if not isinstance(node, dict):
            return node if self._keywords is None else {}
        found = cast("dict[str, Any]", node)
        if self._keywords is not None:
            if isinstance(reference := found.get("$ref"), str):
                target = _find(reference, self._schema)
                if not reference.startswith(_DEFINITIONS):
                    # Only definitions may be referred to. What contains itself ends where it would begin again.
                    return self.fit({} if reference in inside else target, depth - 1, inside | {reference})
            found = _in_known_words(found, self._keywords)
        fitted: dict[str, Any] = {}
        for key, value in found.items():
            if key in _MAPS:
                fitted[key] = {name: self.fit(each, depth - 1, inside) for name, each in _map(value).items()}
            elif key in _LISTS:
                fitted[key] = [self.fit(each, depth - 1, inside) for each in _list(value)]
            elif key in _SCHEMAS and isinstance(value, dict):
                fitted[key] = self.fit(value, depth - 1, inside)
            else:
                fitted[key] = value
        if "array" in (fitted.get("type"), *_list(fitted.get("type"))) and not isinstance(fitted.get("items"), dict):
            fitted["items"] = {}
        return fitted

    def _count(self, depth: int) -> None:
        self._left -= 1
        if not depth or self._left < 0:
            limits = f"more than {_DEPTH} levels deep, refers to itself, or has more than {_NODES} parts"
            raise UnfitTool(f"its schema is nested {limits}")


def _in_known_words(node: dict[str, Any], keywords: frozenset[str]) -> dict[str, Any]:
    """A schema in the keywords that a provider knows; it may say less than before."""
    if "$ref" in node:  # nothing else may stand beside it
        return {"$ref": node["$ref"]}
    if "const" in node:
        node = {**node, "enum": [node["const"]]}
    for branch in _branches(node.get("allOf")):
        properties = {**_map(branch.get("properties")), **_map(node.get("properties"))}
        node = {**branch, **node, **({"properties": properties} if properties else {})}
    known = {key: value for key, value in node.items() if key in keywords}
    if not all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in _list(node.get("enum"))):
        known.pop("enum", None)
    if known.get("type") == "string":
        known.pop("format", None)
    if "required" in known:
        known["required"] = [each for each in _list(known["required"]) if each in _map(known.get("properties"))]
    return known


def _leave_out_properties(root: dict[str, Any], provider: Provider) -> None:
    assert provider.property_name is not None
    for name in list(root["properties"]):
        if not provider.property_name.fullmatch(name):
            if name in _list(root.get("required")):
                raise UnfitTool(f"{provider.name} refuses the name of its parameter {name!r:.80}")
            del root["properties"][name]


def _branches(value: object) -> list[dict[str, Any]]:
    """The schemas of a combination; `true` is one that says nothing, and `false` never fits."""
    found: list[Any] = [{} if each is True else each for each in _list(value)]
    return [each for each in found if isinstance(each, dict)]


def _map(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list) else []

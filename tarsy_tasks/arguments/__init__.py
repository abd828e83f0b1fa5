"""Turns what a model wrote as the arguments of a tool call into a JSON object, or rejects it with the correction.

    cascade      which reading of a text becomes the arguments, in which order; `reading` is the result
    wrappings    removes fences, labels and tags around the arguments
    almost_json  reads JSON, and text with one sensible reading as JSON
    pairs        reads `key: value`, `key=value`
    yaml_text    reads YAML
    target       applies the tool's schema to each reading
    envelope     recognizes a whole call instead of its arguments
    attempts     recognizes a failed attempt at structure in a plain text
    schema       does a value fit, and why not (jsonschema-rs); cost limits the work, dialects reads other drafts
    shape        names, types, alternatives in a schema; formats recognizes dates, addresses, …
    coercion     converts values that do not fit, where only one way makes sense
    rejection    the text for the model; example generates the call in it
    values       scalars, and the guarantee that all results are JSON

Pure: no I/O, no state except a cache of schemas, linear in the text. docs/arguments.md has the rules for users.
"""

from collections.abc import Mapping
from typing import Any

from tarsy_tasks.arguments.cascade import read_arguments
from tarsy_tasks.arguments.reading import ParsedArguments, Reading

__all__ = ["ParsedArguments", "Reading", "parse_arguments", "read_arguments"]


def parse_arguments(text: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments that a model wrote as `text`.

    Args:
        text: JSON, almost-JSON, YAML, `key: value` pairs or a plain text.
        schema: JSON Schema of the tool's arguments. Without it the arguments are read but not checked, and anything
            that is not an object becomes `{"input": ...}`.

    Returns:
        A JSON-safe object: the output of `json.dumps(..., allow_nan=False)` reads back equal.

    Raises:
        ArgumentsError: They cannot be read, or do not fit the schema. The text is for a model; nothing was sent.
    """
    return read_arguments(text, schema).arguments

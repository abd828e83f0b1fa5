"""What a model wrote as the arguments of a tool call becomes a JSON object, or an error that names the fix.

    cascade      which reading of a text is the call; the principle for texts with two readings
    wrappings    fences, labels, tags around the arguments
    almost_json  JSON, and what has one sensible reading as JSON
    pairs        `key: value`, `key=value`
    yaml_text    YAML
    target       what the tool's schema makes of each reading
    envelope     a whole call in place of its arguments
    attempts     signs that a bare text was to be more
    schema       does it fit, why not (jsonschema-rs); cost bounds the work
    shape        names, types, alternatives in a schema
    coercion     what does not fit is turned into what fits, where only one way makes sense
    rejection    the text for the model; example makes up the call in it
    values       scalars, and the promise that all that comes out is JSON

Pure: no I/O, no state but a cache of schemas, linear in the text. docs/arguments.md explains the rules to users.
"""

from collections.abc import Mapping
from typing import Any

from tarsy_tasks.arguments.cascade import read_arguments
from tarsy_tasks.arguments.reading import ParsedArguments, Reading

__all__ = ["ParsedArguments", "Reading", "parse_arguments", "read_arguments"]


def parse_arguments(text: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments that a model wrote as `text`.

    Args:
        text: JSON, almost-JSON, YAML, `key: value` pairs or a bare text.
        schema: JSON Schema of the tool's arguments. Without it the arguments are read but not checked, and what is no
            object becomes `{"input": ...}`.

    Returns:
        A JSON-safe object: `json.dumps(..., allow_nan=False)` works and reads back equal.

    Raises:
        ArgumentsError: They cannot be read, or do not fit the schema. The text is for a model; nothing was sent.
    """
    return read_arguments(text, schema).arguments

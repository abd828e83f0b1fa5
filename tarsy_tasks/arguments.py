import json

from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.outcomes import ErrorCode

_c = {}


def parse_arguments(text, schema=None):
    if text is None:
        text = {}
    if isinstance(text, str):
        try:
            text = json.loads(text or "{}")
        except ValueError as e:
            raise ArgumentsError(ErrorCode.INVALID_ARGUMENTS, str(e)) from None
    if schema:
        v = _c.get(id(schema))
        if v is None:
            import jsonschema

            v = _c[id(schema)] = (jsonschema.Draft202012Validator(schema), schema)
        e = next(v[0].iter_errors(text), None)
        if e:
            raise ArgumentsError(ErrorCode.INVALID_ARGUMENTS, e.message)
    return text

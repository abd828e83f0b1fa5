"""The kinds of strings in a configuration, and their checks.

Strings keep their `${NAME}`; resolved ones are checked again, with the context `variables.RESOLVED`. It knows no keys.
"""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationInfo

from tarsy_tasks.config.variables import RESOLVED, has_references, validate_references

__all__ = [
    "Command",
    "EnvName",
    "HeaderName",
    "HeaderValue",
    "HiddenTexts",
    "Line",
    "Model",
    "SecretLine",
    "SecretText",
    "Text",
    "Url",
]


class Model(BaseModel):
    """Strict, so that no value is converted silently; shows no input, which may be secret."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


class HiddenTexts(dict[str, str]):
    """Strings by name, any of which may be secret: the repr shows only the names."""

    def __repr__(self) -> str:
        return repr(dict.fromkeys(self, "…"))


def _validate_text(value: str, info: ValidationInfo) -> str:
    if "\0" in value:
        raise ValueError("contains a NUL character")
    if info.context is not RESOLVED:
        validate_references(value)
    return value


def _validate_line(value: str) -> str:
    if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
        raise ValueError("contains a control character such as a line break; expected a single line")
    return value


def _validate_command(value: str, info: ValidationInfo) -> str:
    if info.context is not RESOLVED and has_references(value):
        return value  # checked when they are resolved
    program, _, rest = value.strip().partition(" ")
    # A path may have spaces, the name of a program has none; clients' files also have paths of Windows.
    if rest and (not {"/", "\\"} & {*program} or " -" in value):
        shown = f"`{program}`" if re.fullmatch(r"[\w./+-]{1,40}", program) else "the program"
        raise ValueError(f"this is a program with its arguments; keep {shown} here, and put each argument into `args`")
    return value


def _validate_secret_text(value: SecretStr, info: ValidationInfo) -> SecretStr:
    _validate_text(value.get_secret_value(), info)
    return value


def _validate_secret_line(value: SecretStr, info: ValidationInfo) -> SecretStr:
    _validate_line(_validate_text(value.get_secret_value(), info))
    return value


def _validate_url(value: str, info: ValidationInfo) -> str:
    if info.context is not RESOLVED and has_references(value):
        return value  # checked when they are resolved
    try:
        parts = urlsplit(value)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or re.search(r"\s", value):
        raise ValueError(
            "not a valid URL; expected one such as `https://host:8080/mcp`: http or https, a host, no spaces"
        )
    return value


def _validate_header_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise ValueError("not a valid header name; use letters, digits and `-`, no spaces and no `:`")
    return name


def _validate_env_name(name: str) -> str:
    if not name or "=" in name or "\0" in name:
        raise ValueError("not a valid variable name; it must not be empty or contain `=`")
    return name


Text = Annotated[str, AfterValidator(_validate_text)]
Line = Annotated[str, Field(min_length=1), AfterValidator(_validate_text), AfterValidator(_validate_line)]
Command = Annotated[Line, AfterValidator(_validate_command)]
SecretLine = Annotated[SecretStr, Field(min_length=1), AfterValidator(_validate_secret_line)]
SecretText = Annotated[SecretStr, Field(min_length=1), AfterValidator(_validate_secret_text)]
Url = Annotated[Line, AfterValidator(_validate_url)]
EnvName = Annotated[str, AfterValidator(_validate_env_name)]
HeaderName = Annotated[str, AfterValidator(_validate_header_name)]
HeaderValue = Annotated[Text, AfterValidator(_validate_line)]

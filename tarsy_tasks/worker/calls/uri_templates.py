"""The URI that a template becomes with the values that an agent gives.

Owns which values fit a template, and that they do not lead to another origin than the server's template says: a model
chooses them. Expansion itself is the SDK's (RFC 6570).
"""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["expand_template"]

_LONGEST_VALUES = 8 * 1024
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BY_ORIGIN = frozenset({"http", "https", "ws", "wss", "ftp", "ftps", "sftp", "ssh"})
"""Schemes whose authority is a host; of others, such as `docs://{name}`, it is any name."""
_AUTHORITY = re.compile(r"//((?:[^/?#{]|\{[^/?#}][^}]*\})*)")
"""The part of a template that becomes the authority: an expression of `/`, `?` or `#` ends it."""
_EXPRESSION = re.compile(r"\{([^}]*)\}")
_LABEL = re.compile(r"[A-Za-z0-9-]+")


def expand_template(template: str, values: Mapping[str, str | Sequence[str]]) -> str:
    """The URI.

    Raises:
        ArgumentsError: The template is not valid, the values are not those that it needs, or its origin would be
            theirs.
    """
    try:
        parsed = UriTemplate.parse(template)
    except InvalidUriTemplate as error:
        raise _unusable(f"`uri_template` is not a URI template ({error})") from None
    names = parsed.variable_names
    known = ", ".join(f"`{name}`" for name in names) or "none"
    if unknown := sorted(values.keys() - set(names)):
        raise _unusable(f"the template has no variable `{unknown[0]}`; its variables: {known}")
    if missing := [name for name in names if name not in values and name not in parsed.query_variable_names]:
        raise _unusable(f"a value for the variable `{missing[0]}` is missing; the template's variables: {known}")
    if sum(map(_length_of, values.values())) > _LONGEST_VALUES:
        raise _unusable(f"the values have more than {_LONGEST_VALUES} characters")
    uri = parsed.expand(values)
    if not _keeps_origin(template, values, uri):
        raise _unusable("with these values the template leads to another origin than its own")
    return uri


def _length_of(value: str | Sequence[str]) -> int:
    return len(value) if isinstance(value, str) else sum(len(each) + 1 for each in value)


def _keeps_origin(template: str, values: Mapping[str, str | Sequence[str]], uri: str) -> bool:
    """Whether scheme and host are those that the template itself says: each value is a part of one label of the host.

    They are looked at one by one. One pattern for all of them would take time without end for some values."""
    scheme = _SCHEME.match(template)
    if scheme is None:
        return False
    authority = _AUTHORITY.match(template, scheme.end())
    if authority is None or scheme[1].lower() not in _BY_ORIGIN:
        return True
    literals = _EXPRESSION.split(authority[1])
    if not re.search(r"[^.:]", "".join(literals[::2])):
        return False  # any host
    for number, expression in enumerate(literals):
        if number % 2 == 0:
            continue
        if expression.startswith("+"):  # it could hold the rest of a host, so nothing of it may be in the authority
            literals[number] = ""
            continue
        literals[number] = UriTemplate.parse(f"{{{expression}}}").expand(values)
        if not _LABEL.fullmatch(literals[number]):
            return False
    try:
        return urlsplit(uri).netloc == "".join(literals)
    except ValueError:
        return False


def _unusable(why: str) -> ArgumentsError:
    return ArgumentsError(
        ErrorCode.INVALID_ARGUMENTS, f"The resource cannot be read: {why}. Nothing was sent. Correct the arguments."
    )

"""Credentials in HTTP headers whose values have a syntax of their own: `Authorization` and `Cookie`.

Owns these syntaxes. The kind of credentials and the names of cookies stay readable.
"""

import re
from collections.abc import Iterator
from itertools import chain

from tarsy_tasks.masking.edits import MASK, Edit
from tarsy_tasks.masking.names import Strength
from tarsy_tasks.masking.rules.vocabulary import SECRET_NAMES
from tarsy_tasks.masking.values import is_prose, is_secret, looks_random

__all__ = ["find_in_header", "is_header"]

_LIMIT = 16 * 1024
_LEAD = re.compile(r"(?:[ \t]|%20|\x1b\[[0-9;]*m)*(?:\[[ \t]*)?[A-Za-z]?(\\*[\"'`])?")
_QUOTED = re.compile(r"[^\"'`\r\n]*+")
_UNQUOTED = re.compile(r"(?:=\"[^\"\r\n]*\"|[^\"'`\r\n\\])*+")
_NEXT = re.compile(r"(?i:cookie|authorization)\\*[\"']?[ \t]*[:=]")
_SCHEME = re.compile(r"([A-Za-z][\w\-]*)(?:[ \t]+|%20)(?=\S)")
_COOKIES = frozenset({"cookie", "set-cookie", "document.cookie", "http_cookie"})
_COOKIE = re.compile(r"([^\s=;,\"'\[]++)(?:=([^;\s\"']*))?")
_ATTRIBUTES = frozenset(
    {"path", "domain", "expires", "max-age", "samesite", "httponly", "secure", "priority", "partitioned", "version"}
)
_LONG = re.compile(r"[A-Za-z0-9+/=_.\-]{8,}")


def is_header(name: str) -> bool:
    """Whether the value of a name has one of these syntaxes."""
    folded = name.lower()
    return folded.endswith("authorization") or folded in _COOKIES


def find_in_header(text: str, name: str, position: int) -> Iterator[Edit]:
    """The secrets in the value that begins at a position, of a name that `is_header`."""
    start, end = _span(text, position)
    return (_find_cookies if name.lower() in _COOKIES else _find_credentials)(text, start, end)


def _span(text: str, position: int) -> tuple[int, int]:
    lead = _LEAD.match(text, position)
    start = lead.end() if lead else position
    following = _NEXT.search(text, start, start + _LIMIT)
    limit = following.start() if following else start + _LIMIT
    content = (_QUOTED if lead is not None and lead[1] else _UNQUOTED).match(text, start, limit)
    end = content.end() if content else start
    while end > start and text[end - 1] in " \t\\,;)]}":
        end -= 1
    return start, end


def _find_credentials(text: str, start: int, end: int) -> Iterator[Edit]:
    scheme = _SCHEME.match(text, start, end)
    if scheme is not None:
        start = scheme.end()
    credentials = text[start:end]
    if MASK in credentials:
        if scheme is not None and _LONG.search(credentials.replace(MASK, " ")):
            yield Edit(start, end)
    elif scheme is None or "=" not in credentials:
        strength = Strength.STRONG if scheme is not None else Strength.WEAK
        # `Bearer token` names what belongs there.
        is_name = credentials.lower() in SECRET_NAMES
        if not is_name and is_secret(credentials, strength) and not is_prose(credentials):
            yield Edit(start, end)
    elif any(map(looks_random, chain(_LONG.findall(credentials), [credentials]))):
        yield Edit(start, end)


def _find_cookies(text: str, start: int, end: int) -> Iterator[Edit]:
    for cookie in _COOKIE.finditer(text, start, end):
        value = cookie[2] or ""
        if cookie[1].lower() not in _ATTRIBUTES and value != MASK and (MASK in value or looks_random(value)):
            yield Edit(*cookie.span(2))

"""Credentials in HTTP headers whose values have a syntax of their own: `Authorization` and `Cookie`.

Owns these syntaxes. The kind of credentials and the names of cookies stay readable.
"""

import re
from collections.abc import Iterator
from itertools import chain

from tarsy_tasks.masking.edits import MASK, Edit
from tarsy_tasks.masking.names import Strength
from tarsy_tasks.masking.rules.vocabulary import SECRET_NAMES
from tarsy_tasks.masking.values import is_made_up, is_prose, is_secret, looks_random

__all__ = ["find_in_header", "is_header"]

_LIMIT = 16 * 1024
_LEAD = re.compile(r"(?:[ \t]|%20|\x1b\[[0-9;]*m)*(?:\[[ \t]*)?(?:[A-Za-z]?(\\*[\"'`]))?")
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
_FOLDED_LINES = 16
_BEFORE_LIMIT = 100
_BEFORE = re.compile(r"[+~<>#|*]?[ \t]*(?:-[ \t]+)*")
"""In front of a header that its value may be folded of: signs of diffs, comments and `curl -v`."""
_LINE_END = re.compile(r"[ \t,;]*\r?\n")
_PARAMETERS = r"(?:[\w.\-]++=(?:\"[^\"\r\n]*+\"|[^\s,\"]*+)[ \t]*+[,;]?+[ \t]*+)++"
_FOLDED = re.compile(
    rf"[ \t]+((?:[A-Za-z][\w\-]*[ \t]+)?(?:{_PARAMETERS}|[A-Za-z0-9+/=_.~\-]+))(?=[ \t,;]*(?:\r?\n|\Z))"
)
"""A token, or parameters, with or without a scheme in front; not a sentence or a field."""
_SCHEME_ALONE = re.compile(r"[A-Za-z][\w\-]*")
_KNOWN_SCHEME = re.compile(r"(?i)basic|bearer|digest|token|api-?key|negotiate|ntlm|oauth|hmac\S*|aws\S*|jwt|dpop|hawk")
_BETWEEN = re.compile(r"[\s,;\"=]+")


def is_header(name: str) -> bool:
    """Whether the value of a name has one of these syntaxes."""
    folded = name.lower()
    return folded.endswith("authorization") or folded in _COOKIES


def find_in_header(text: str, name: str, position: int, start: int | None = None) -> Iterator[Edit]:
    """The secrets in the value that begins at a position, of a name that `is_header`.

    Args:
        start: Where the name begins, if its value may go on in the lines below.
    """
    pieces = [_span(text, position)]
    if start is not None:
        pieces += _folded_lines(text, start, pieces[0][1])
    if name.lower() in _COOKIES:
        for piece in pieces:
            yield from _find_cookies(text, *piece)
    else:
        yield from _find_credentials(text, pieces)


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


def _folded_lines(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The lines that a value goes on in, without their indentation: RFC 9112 calls that folding. They begin with what
    is in front of the name, or as many blanks, and at least one more."""
    line_start = text.rfind("\n", max(0, start - _BEFORE_LIMIT), start) + 1
    if start - line_start > _BEFORE_LIMIT or not _BEFORE.fullmatch(text, line_start, start):
        return
    before = text[line_start:start]
    for _ in range(_FOLDED_LINES):
        line_end = _LINE_END.match(text, end)
        if line_end is None or not (
            text.startswith(before, line_end.end()) or text.startswith(" " * len(before), line_end.end())
        ):
            return
        first = line_end.end() + len(before)
        line = _FOLDED.match(text, first, first + _LIMIT)
        if line is None:
            return
        end = line.end()
        yield line.span(1)


def _find_credentials(text: str, pieces: list[tuple[int, int]]) -> Iterator[Edit]:
    (start, end), *below = pieces
    scheme = _SCHEME.match(text, start, end)
    if start == end and below:
        yield from _find_credentials(text, below)
    elif scheme is None and below and _SCHEME_ALONE.fullmatch(text, start, end):
        # What is not known for a scheme may be a remark: `Authorization: failed`.
        is_known = _KNOWN_SCHEME.fullmatch(text, start, end) is not None
        yield from _find_parameters(text, below[0], is_after_scheme=is_known)
        yield from _find_continued(text, below[1:])
    else:
        piece = (start if scheme is None else scheme.end(), end)
        yield from _find_parameters(text, piece, is_after_scheme=scheme is not None)
        yield from _find_continued(text, below)


def _find_parameters(text: str, piece: tuple[int, int], *, is_after_scheme: bool) -> Iterator[Edit]:
    """What is in a line behind the scheme."""
    credentials = text[slice(*piece)]
    if MASK in credentials:
        if is_after_scheme and _LONG.search(credentials.replace(MASK, " ")):
            yield Edit(*piece)
    elif not is_after_scheme or "=" not in credentials:
        strength = Strength.STRONG if is_after_scheme else Strength.WEAK
        # `Bearer token` names what belongs there.
        is_name = credentials.lower() in SECRET_NAMES
        if not is_name and is_secret(credentials, strength) and not is_prose(credentials):
            yield Edit(*piece)
    elif any(map(looks_random, chain(_LONG.findall(credentials), [credentials]))):
        yield Edit(*piece)


def _find_continued(text: str, pieces: list[tuple[int, int]]) -> Iterator[Edit]:
    """The lines below that go on with credentials: the rest of a token, or parameters."""
    for start, end in pieces:
        said = text[start:end]
        words = (word for word in _BETWEEN.split(said) if word != MASK)
        if said.endswith("=") or any(looks_random(word) or is_made_up(word) for word in words):
            yield Edit(start, end)


def _find_cookies(text: str, start: int, end: int) -> Iterator[Edit]:
    for cookie in _COOKIE.finditer(text, start, end):
        value = cookie[2] or ""
        if cookie[1].lower() not in _ATTRIBUTES and value != MASK and (MASK in value or looks_random(value)):
            yield Edit(*cookie.span(2))

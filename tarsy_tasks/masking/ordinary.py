"""What ordinary logs are full of: words that promise a secret, and none behind them.

Owns these. It only saves time: the searches would find out that each is none, but in a log there is one in every line.
What is hidden from them here cannot be a secret under any name that could be read there.
"""

import re

__all__ = ["hide_ordinary"]

_PLAIN = tuple(
    (said, said[:hidden] + b"\0" + said[hidden + 1 :])
    for said, hidden in (
        (b" HTTP/", 0),  # of a request for `/oauth/token`
        (b'="" ', 0),
        (b'="",', 0),
        (b'=""\n', 0),
        (b"token_count", 4),
        (b"token_type", 4),
        (b"token_ttl", 4),
        (b"token_usage", 4),
        (b"token_id", 4),
    )
)
"""Said, and where a sign of it is taken away."""
_PART = rb"[a-z\d]{0,15}"
_UUID = rb"[a-z\d]{8}-[a-z\d]{4}-"
_COUNT = re.compile(rb'okens(?:"\s{0,4}:)?\s{0,4}\d')
_BEARER_OF_FIELD = re.compile(rb"earer [a-z_]+=[^=]")
_OBJECTS = tuple(
    (
        name + b'="',
        re.compile(name + rb"(?<![\w.\-/$?&%\\]" + name + rb')="(?![^"]*(?:' + _UUID + rb"|sk-|xox))"
        + _PART + rb"(?:[\-./]" + _PART + rb')+"'),
    )
    for name in (b"secret", b"token")
)  # fmt: skip
"""`secret="prod/db-credentials"`: lower case, and no part of it is long."""


def hide_ordinary(projection: bytes) -> bytes:
    """What the searches for names are to look at, with the same offsets.

    Args:
        projection: As `search.project` has it.
    """
    for said, hidden in _PLAIN:
        projection = projection.replace(said, hidden)
    for beginning, pattern in ((b"okens", _COUNT), (b"earer ", _BEARER_OF_FIELD), *_OBJECTS):
        if beginning in projection:
            projection = pattern.sub(_blank, projection)
    return projection


def _blank(match: re.Match[bytes]) -> bytes:
    return b"\0" + match[0][1:]

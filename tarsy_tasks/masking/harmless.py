"""Harmless text that is common in logs: names of secrets without a secret.

Owns this text. It only saves time: the searches would reject all of it, but some of it is in every line of a log.
Nothing that is hidden here can be a secret under any name in the text.
"""

import re
from functools import lru_cache

from tarsy_tasks.masking.json_frames import is_relevant_name
from tarsy_tasks.masking.names import STEMS
from tarsy_tasks.masking.search import Places

__all__ = ["hide_harmless"]

_PLAIN = tuple(
    (said, said[:hidden] + b"\0" + said[hidden + 1 :])
    for said, hidden in (
        (b" HTTP/", 0),  # of a request for `/oauth/token`
        (b'="" ', 0),
        (b'="",', 0),
        (b'=""\n', 0),
        *((b"token_" + of, 4) for of in (b"count", b"type", b"ttl", b"usage", b"id")),
    )
)
"""Text, and the offset of the character to blank out."""
_keys = Places([rf'{STEMS}[\w.\-]*"\s{{0,4}}:\s{{0,4}}[\d"tfn]'])
_REST_OF_KEY = re.compile(rb'([\w.\-]{1,60})"\s{0,4}:')
_WHOLE_KEY = re.compile(rb"[\w.\-]+")
_NAME_LIMIT = 60
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
"""`secret="prod/db-credentials"`: lower case, without a long part."""


def hide_harmless(projection: bytes) -> bytes:
    """The projection for the searches for names, with the same offsets."""
    for said, hidden in _PLAIN:
        projection = projection.replace(said, hidden)
    for beginning, pattern in ((b"okens", _COUNT), (b"earer ", _BEARER_OF_FIELD), *_OBJECTS):
        if beginning in projection:
            projection = pattern.sub(_blank, projection)
    return _hide_idle_keys(projection) if b'":' in projection else projection


def _hide_idle_keys(projection: bytes) -> bytes:
    """Without keys in JSON whose values are not secret, such as `"auth_method": "oidc"`."""
    hidden = bytearray(projection)
    for place in _keys.find(projection):
        rest = _REST_OF_KEY.match(projection, place)
        start = projection.rfind(b'"', max(0, place - _NAME_LIMIT), place) + 1
        if rest is not None and start and _is_idle(projection[start : rest.end(1)]):
            hidden[start : rest.end(1)] = bytes(rest.end(1) - start)
    return bytes(hidden)


@lru_cache(maxsize=4096)
def _is_idle(key: bytes) -> bool:
    return _WHOLE_KEY.fullmatch(key) is not None and not is_relevant_name(key.decode())


def _blank(match: re.Match[bytes]) -> bytes:
    return b"\0" + match[0][1:]

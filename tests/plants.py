"""Secrets that tests plant, and the search for them in whatever anybody can read afterwards.

Owns how a secret may be written where it leaked: as it is, escaped, encoded, or half of it. It knows no masking: what
the package takes for a secret is of no interest here.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

import re2
import redis

__all__ = ["decode_all", "find_leaks", "find_leaks_in_redis", "know", "plant", "read_keys"]

_DEEPEST = 4
"""Celery's bodies are base64 in JSON, and results are JSON in that."""
_LONG = 24
"""Half of a shorter secret may be found by chance."""
_BASE64 = re.compile(rb"[A-Za-z0-9+/_\-]{16,}")
_READ: dict[bytes, Callable[[Any, bytes], Any]] = {
    b"string": lambda client, key: client.get(key),
    b"hash": lambda client, key: client.hgetall(key),
    b"list": lambda client, key: client.lrange(key, 0, -1),
    b"set": lambda client, key: client.smembers(key),
    b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    b"stream": lambda client, key: client.xrange(key),
}
_known: dict[str, str] = {}


def plant(where: str, prefix: str = "") -> str:
    """The secret for a place, always the same: from now on every search of this process finds it.

    Args:
        where: What a report calls it.
        prefix: By which it is known for a secret, such as `ghp_`.
    """
    digest = base64.b32encode(hashlib.sha256(where.encode()).digest()).decode().lower()
    return know(where, f"{prefix}{digest[:20]}9{digest[20:39]}")


def know(where: str, secret: str) -> str:
    """The same for a secret that somebody else made up."""
    _known[where] = secret
    return secret


def find_leaks(said: bytes | str, names: Iterable[str] | None = None) -> set[str]:
    """Which of the planted secrets can be read from this, decoding what is encoded.

    Args:
        names: As `plant` was given them; None: all.
    """
    forms, pattern = _build_search(frozenset(_known if names is None else names), len(_known))
    text = said.encode("utf-8", "surrogatepass") if isinstance(said, str) else said
    return {forms[match.group()] for reading in decode_all(text) for match in pattern.finditer(reading)}


def decode_all(text: bytes, depth: int = 0) -> Iterator[bytes]:
    """The text, and what is base64 in it, and in that."""
    yield text
    if depth == _DEEPEST:
        return
    for run in _BASE64.findall(text):
        whole = run[: len(run) - (len(run) % 4 == 1)].translate(bytes.maketrans(b"-_", b"+/"))
        try:
            decoded = base64.b64decode(whole + b"=" * (-len(whole) % 4))
        except binascii.Error:
            continue
        # Numbers, hashes and names decode as well, to nothing that anybody could read.
        if decoded[:12].isascii() and decoded[:12].replace(b"\n", b"").decode().isprintable():
            yield from decode_all(decoded, depth + 1)


def read_keys(client: redis.Redis) -> Iterator[tuple[str, bytes]]:
    """The name and the content of every key, of whatever type, with nothing between its parts but line feeds."""
    for key in client.scan_iter(count=1000):
        kind = client.type(key)
        if kind != b"none":
            yield key.decode(errors="replace"), b"\n".join([key, *_parts(_READ[kind](client, key))])


def find_leaks_in_redis(client: redis.Redis) -> dict[str, set[str]]:
    """The keys from which secrets can be read, and which."""
    found = {key: find_leaks(content) for key, content in read_keys(client)}
    return {key: leaks for key, leaks in found.items() if leaks}


@lru_cache(maxsize=8)
def _build_search(names: frozenset[str], known: int) -> tuple[dict[bytes, str], Any]:
    """What to find, with whose it is, and how; built again when more is known."""
    forms = {form: name for name in names for form in _forms(_known[name])}
    options = re2.Options()
    options.max_mem = 256 * 1024 * 1024
    return forms, re2.compile(b"|".join(map(re2.escape, sorted(forms, key=len, reverse=True))), options)


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        for item in value.items():
            yield from _parts(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _parts(item)
    elif value is not None:
        yield str(value).encode()


def _forms(secret: str) -> Iterator[bytes]:
    cuts = [0, len(secret) // 2, len(secret)] if len(secret) >= _LONG else [0, len(secret)]
    for part in {secret, *(secret[start:end] for start, end in pairwise(cuts))}:
        written = {part, quote(part, safe=""), quote(part), quote_plus(part)}
        for ascii_only in (True, False):
            once = json.dumps(part, ensure_ascii=ascii_only)[1:-1]
            written |= {once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
        yield from (each.encode() for each in written)
    yield secret.encode().hex().encode()
    yield from _base64_forms(secret.encode())


def _base64_forms(secret: bytes) -> Iterator[bytes]:
    """What is sure of the base64 of a text that holds it, for each of three ways to lie in there."""
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + secret)
        form = encoded[-(-shift * 8 // 6) : (shift + len(secret)) * 8 // 6]
        yield form
        yield form.translate(bytes.maketrans(b"+/", b"-_"))

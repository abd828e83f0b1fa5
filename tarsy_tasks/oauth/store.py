"""Sign-ins in Redis: encrypted, one per server, for all workers.

Owns the scripts. Of all workers, one renews: many authorization servers take each refresh token only once. It holds a
lease, which lapses with it, and replaces what it has read only if that is still there: a person who signed in again
meanwhile, or out, is not undone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.script import constants, script
from tarsy_tasks.oauth.sealed import Sealer, SealError
from tarsy_tasks.oauth.sign_in import SignIn

__all__ = [
    "Found",
    "begin_renewal",
    "build_delete",
    "build_read",
    "build_write",
    "end_renewal",
    "read_found",
    "replace",
    "seal",
    "time_of",
]

_KEPT_S = 366 * 24 * 3600
"""How long a sign-in is kept after it was last used."""


class Found(NamedTuple):
    """A sign-in as it was read.

    Attributes:
        sealed: As it is in Redis.
        now: The time of Redis then.
    """

    sign_in: SignIn
    sealed: bytes
    now: float


def build_read(server: str) -> tuple[tuple[Any, ...], ...]:
    """The commands whose replies `read_found` takes."""
    key = keys.sign_in_key(server)
    return ("GET", key), ("TIME",), ("EXPIRE", key, _KEPT_S)


def read_found(sealer: Sealer, server: str, replies: Sequence[Any]) -> Found | None:
    """What was read; None if nobody has signed in.

    Raises:
        SealError: It cannot be read.
    """
    sealed = replies[0]
    if sealed is None:
        return None
    text = sealer.open(keys.sign_in_key(server), sealed)
    try:
        sign_in = SignIn.model_validate_json(text)
    except ValidationError:
        raise SealError("is of another version") from None
    return Found(sign_in, sealed, time_of(replies[1]))


def time_of(reply: Sequence[Any]) -> float:
    """The time in a reply to `TIME`."""
    return int(reply[0]) + int(reply[1]) / 1e6


def seal(sealer: Sealer, server: str, sign_in: SignIn) -> bytes:
    """A sign-in as it is in Redis."""
    return sealer.seal(keys.sign_in_key(server), sign_in.to_json())


def build_write(server: str, sealed: bytes) -> tuple[Any, ...]:
    """The command that stores a new sign-in."""
    return ("SET", keys.sign_in_key(server), sealed, "EX", _KEPT_S)


def build_delete(server: str) -> tuple[Any, ...]:
    """The command that removes a sign-in."""
    return ("DEL", keys.sign_in_key(server))


_KEYS = {"place": (keys.sign_in_key, "server"), "renewal": (keys.renewal_key, "server")}
_END = "if redis.call('GET', renewal) == owner then redis.call('DEL', renewal) end"


# `lead`: the caller is to renew; `busy`: another worker does; `changed`: what the caller has read is there no longer.
@script(
    """
    if redis.call('GET', place) ~= seen then return 'changed' end
    if redis.call('SET', renewal, owner, 'NX', 'EX', lease_s) or redis.call('GET', renewal) == owner then
        return 'lead'
    end
    return 'busy'
    """,
    known=_KEYS,
)
def begin_renewal(*, server: str, seen: str | bytes, owner: str, lease_s: int) -> bytes: ...


# Returns 1 if it is stored. A full Redis takes it, too: a new refresh token must not be lost.
@script(
    constants(kept_s=_KEPT_S),
    """
    local is_same = redis.call('GET', place) == seen
    if is_same then redis.call('SET', place, text, 'EX', kept_s) end
    """,
    _END,
    "return is_same and 1 or 0",
    known=_KEYS,
)
def replace(*, server: str, seen: str | bytes, text: str | bytes, owner: str) -> int: ...


@script(_END, known=_KEYS)
def end_renewal(*, server: str, owner: str) -> None: ...

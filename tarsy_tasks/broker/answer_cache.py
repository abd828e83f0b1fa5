"""The cache of answers, as it is in Redis: what is kept, and who asks for what is not.

Owns the scripts. A call that finds nothing becomes the leader of a flight: it asks the server, and all others with the
same question, in whatever worker, wait for what it keeps. The leader has a lease on that, which lapses with its worker.
Each script may be sent twice. What is kept, and for how long, is decided in `worker.calls.result_cache`.
"""

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.audit_probe import PROBE_AUDIT
from tarsy_tasks.broker.script import Key, script

__all__ = ["find_or_lead", "keep", "release", "renew"]

_RELEASE = "if redis.call('GET', flight) == owner then redis.call('DEL', flight) end"


# Returns what is kept; or an empty text if the caller is the leader, or the audit takes no entry, and a call has to be
# refused for that where all others are; or None if somebody else is the leader.
@script(
    PROBE_AUDIT,
    """
    local found = redis.call('GET', answer)
    if found then return is_audited and probe_audit() and '' or found end
    if redis.call('SET', flight, owner, 'NX', 'EX', lease_s) or redis.call('GET', flight) == owner then return '' end
    return false
    """,
    known={"audit": keys.AUDIT},
)
def find_or_lead(*, answer: Key, flight: Key, owner: str, lease_s: int, is_audited: bool) -> bytes | None: ...


@script(f"{_RELEASE} redis.call('SET', answer, text, 'PX', ttl_ms)", grows=True)
def keep(*, answer: Key, flight: Key, owner: str, text: str | bytes, ttl_ms: int) -> None: ...


@script(_RELEASE)
def release(*, flight: Key, owner: str) -> None: ...


@script("if redis.call('GET', flight) == owner then redis.call('EXPIRE', flight, lease_s) end")
def renew(*, flight: Key, owner: str, lease_s: int) -> None: ...

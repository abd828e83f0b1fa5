"""Which worker holds an isolated session: the directory of them in Redis.

Owns the claim to a session. A claim is a lease that lasts as long as its worker's heartbeat does (`fleet`). Each step
is one script, so of several workers that take calls of a run at the same moment one gets the claim and the others see
it.
How a call gets to the worker that holds its session is `session_handover`.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import as_text
from tarsy_tasks.broker.principals import is_agent_name
from tarsy_tasks.broker.script import NOW, Key, Table, constants, script

__all__ = ["Bounds", "Claim", "ClaimState", "SessionDirectory", "session_key_of", "session_name_of"]

_LOST_S = 3600
"""How long it stays known that a session was lost."""
_KEPT_S = 24 * 3600
"""How long a claim is kept beyond the idle limit of its session; a worker that is lost leaves its claims."""
_DIGEST_CHARS = 32


class ClaimState(StrEnum):
    """What the directory says of a session to a worker that has a call of it."""

    CLAIMED = "claimed"
    """There was none: this worker opens it."""
    HELD = "held"
    """This worker holds it."""
    ELSEWHERE = "elsewhere"
    """Another live worker holds it."""
    LOST = "lost"
    """It is gone, which this call is to be told."""
    FULL = "full"
    """There is none, and no more may be opened."""
    NONE = "none"
    """There is none, and none was asked for."""


class Claim(NamedTuple):
    """The outcome of a claim.

    Attributes:
        holder: With `ELSEWHERE`, the instance that holds it.
        reason: With `LOST`, what was said when it ended; empty: its worker was lost. With `CLAIMED`, the same if Redis
            knew nothing of it, as if it had been lost. With `FULL`, which bound was reached: `worker`, `server` or
            `agent`.
    """

    state: ClaimState
    holder: str = ""
    reason: str = ""


_MEMBER = "local member = session .. '\\n' .. principal\n"


class Bounds(NamedTuple):
    """How many isolated sessions of a server there may be, over all workers.

    Attributes:
        server: In all.
        agent: Of one principal.
    """

    server: int
    agent: int


# The same call gets the same reply again: its first answer may have been lost with the worker that made it.
@script(
    NOW,
    fleet.IS_ALIVE,
    constants(kept_s=_KEPT_S, lost_s=_LOST_S, forgotten="Redis has lost who holds it."),
    _MEMBER,
    r"""
    -- Which bound is reached. What was not confirmed for the length of a lease is gone, if its worker is: after an
    -- outage of Redis, nothing was.
    local function find_bound()
        if is_full then return 'worker' end
        for _, each in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now - lease_s)) do
            local held_by = redis.call('HGET', string.match(each, '^[^\n]*'), 'holder')
            if not held_by or not is_alive(held_by, lease_s) then redis.call('ZREM', index, each) end
        end
        if redis.call('ZSCORE', index, member) then return end
        local all, own = redis.call('ZRANGE', index, 0, -1), 0
        if #all >= most then return 'server' end
        for _, each in ipairs(all) do
            if string.match(each, '\n(.*)$') == principal then own = own + 1 end
        end
        return own >= most_of_agent and 'agent'
    end
    local owner, current, is_open, told, why = unpack(
        redis.call('HMGET', session, 'principal', 'holder', 'open', 'told', 'why'))
    local function claim(reason)
        local bound = find_bound()
        if bound then return {'full', '', bound} end
        redis.call('DEL', session)
        redis.call('HSET', session, 'principal', principal, 'holder', holder, 'home', home, 'lease_s', lease_s)
        redis.call('EXPIRE', session, kept_s + idle_s)
        redis.call('ZADD', index, now, member)
        redis.call('EXPIRE', index, kept_s)
        return {'claimed', '', reason or ''}
    end
    local function lose(reason)
        redis.call('HSET', session, 'principal', principal, 'holder', '', 'told', tag, 'why', reason)
        redis.call('EXPIRE', session, lost_s)
        return {'lost', '', reason}
    end
    if not owner then
        if opens and had_state and not restarts then return lose(forgotten) end
        return opens and claim(forgotten) or {'none', '', ''}
    end
    if current == holder and is_held then
        redis.call('EXPIRE', session, kept_s + idle_s)
        return {'held', '', ''}
    end
    if current ~= '' and current ~= holder and is_alive(current, lease_s) then return {'elsewhere', current, ''} end
    if not opens then
        redis.call('DEL', session)
        return {'none', '', ''}
    end
    if restarts or (current ~= '' and not is_open) or (told and told ~= tag) then return claim() end
    return lose(why or '')
    """,
)
def _claim(
    *,
    session: Key,
    index: Key,
    principal: str,
    home: str,
    most: int,
    most_of_agent: int,
    holder: str,
    tag: str,
    opens: bool,
    is_held: bool,
    had_state: bool,
    is_full: bool,
    restarts: bool,
    idle_s: int,
    lease_s: float,
) -> tuple[bytes, bytes, bytes]: ...


# Returns 0, and does nothing, if the claim is no longer there.
@script(
    """
    if redis.call('HGET', session, 'holder') ~= holder then return 0 end
    redis.call('HSET', session, 'open', 1)
    return 1
    """
)
def _mark_open(*, session: Key, holder: str) -> int: ...


@script(
    constants(lost_s=_LOST_S),
    r"""
    local principal, current = unpack(redis.call('HMGET', session, 'principal', 'holder'))
    if current ~= holder then return end
    redis.call('ZREM', index, session .. '\n' .. principal)
    if why == '' or not redis.call('HGET', session, 'open') then redis.call('DEL', session) return end
    redis.call('HSET', session, 'holder', '', 'why', why)
    redis.call('EXPIRE', session, lost_s)
    """,
)
def _release(*, session: Key, index: Key, holder: str, why: str) -> None: ...


# After an outage of Redis, a claim may have removed sessions that are still there: they are added again.
@script(
    NOW,
    constants(kept_s=_KEPT_S),
    r"""
    for _, member in ipairs(members) do
        local session = string.match(member, '^[^\n]*')
        if redis.call('HGET', session, 'holder') == holder then redis.call('ZADD', index, now, member) end
    end
    redis.call('EXPIRE', index, kept_s)
    """,
)
def _confirm(*, index: Key, members: Table, holder: str) -> None: ...


def session_name_of(server: str, principal: str, run: str) -> str:
    """The name of an isolated session. A run is any text of an agent, and each agent has runs of its own: nobody can be
    in the way of another one by guessing its name. Bound agents are in it by name, because they may look for theirs."""
    agent = principal if is_agent_name(principal) else ""
    return f"{server}:{agent}:{sha256(json.dumps([principal, run]).encode()).hexdigest()[:_DIGEST_CHARS]}"


def session_key_of(server: str, principal: str, run: str) -> str:
    """The key of an isolated session."""
    return keys.session_key(session_name_of(server, principal, run))


_UNBOUND = Bounds(10**9, 10**9)


class SessionDirectory:
    """The directory, for one worker and its event loop.

    Args:
        instance: Unique name of the worker process.
        lease_s: How long a worker counts as alive that renews nothing.

    All methods raise redis-py's `RedisError`, or `OSError`, when Redis cannot be reached.
    """

    def __init__(self, exchange: AsyncRedisExchange, instance: str, lease_s: float) -> None:
        self._exchange = exchange
        self._instance = instance
        self._lease_s = lease_s

    async def claim(
        self,
        server: str,
        session: str,
        principal: str,
        tag: str,
        *,
        home: str = "",
        bounds: Bounds = _UNBOUND,
        idle_s: float = 0,
        is_held: bool = False,
        had_state: bool = False,
        is_full: bool = False,
        opens: bool = True,
        restarts: bool = False,
    ) -> Claim:
        """Claim a session for a call, or confirm the claim to it.

        Args:
            server: The MCP server.
            session: Its key.
            principal: Who sent the call.
            tag: The call.
            home: The queue of its agent, beside which this worker takes calls of the session.
            bounds: How many there may be.
            idle_s: The idle limit of the session.
            is_held: This worker has it.
            had_state: This worker has marked it as open: if Redis knows nothing of it, it is lost.
            is_full: This worker opens no more sessions.
            opens: If there is none, this worker opens it.
            restarts: If it was lost, it is replaced without notice.
        """
        state, holder, reason = await _claim.run_async(
            self._exchange,
            session=session,
            index=keys.sessions_key(server),
            principal=principal,
            home=home,
            most=bounds.server,
            most_of_agent=bounds.agent,
            holder=self._instance,
            tag=tag,
            opens=opens,
            is_held=is_held,
            had_state=had_state,
            is_full=is_full,
            restarts=restarts,
            idle_s=int(idle_s),
            lease_s=self._lease_s,
        )
        return Claim(ClaimState(as_text(state)), as_text(holder), as_text(reason))

    async def mark_open(self, session: str) -> bool:
        """Something was opened under the claim, to be lost with this worker. Whether it still has the claim."""
        return bool(await _mark_open.run_async(self._exchange, session=session, holder=self._instance))

    async def confirm(self, sessions: Iterable[tuple[str, str, str]]) -> None:
        """This worker still has these sessions: servers, keys and principals. They count for the bounds."""
        by_server: defaultdict[str, list[str]] = defaultdict(list)
        for server, session, principal in sessions:
            by_server[server].append(f"{session}\n{principal}")
        for server, members in by_server.items():
            index = keys.sessions_key(server)
            await _confirm.run_async(self._exchange, index=index, members=members, holder=self._instance)

    async def release(self, server: str, session: str, why: str = "") -> None:
        """Give up the claim.

        Args:
            why: Why its state is gone, if it had any, for the next call of the run, as the end of a sentence; empty:
                the run has ended.
        """
        index = keys.sessions_key(server)
        await _release.run_async(self._exchange, session=session, index=index, holder=self._instance, why=why)

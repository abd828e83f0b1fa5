"""Alerts: a server has fallen ill, or is well again; said once, whichever worker saw it.

Owns when that is said. What every worker saw of a server lies in Redis, and one script decides there: a server is ill
when two checks, one soon after the other, left no worker that finds it healthy, and well again when one has found it
so, without a break, for a while that doubles with every relapse of the last hour. So a single failure is no alert, a
flapping server is reported ill and stays it, and nothing storms. An alert is in the stream `tarsy:alerts` before this
process tells anybody else; who is told, it leaves to those who subscribe.
"""

import json
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.script import NOW, Key, constants, script
from tarsy_tasks.telemetry.health_records import RECORD_TTL_S, HealthRecord

__all__ = ["Alert", "note_command", "pass_on", "subscribe"]

logger = logging.getLogger(__name__)

_STATE_TTL_S = 24 * 3600
_STREAM_TTL_S = 30 * 24 * 3600
_STREAM_LENGTH = 1000
_CONFIRMED_S = 4
"""A worker repeats a check that fails after 5 s; what it told of the first one a moment later is no second one."""
_RECOVERY_S = 25
"""With checks every 15 s: the second good one in a row."""
_LONGEST_RECOVERY_S = 900
_RELAPSES_S = 3600


# Returns the alert that this gives, or nothing.
@script(
    NOW,
    constants(
        record_ttl_s=RECORD_TTL_S,
        confirmed_s=_CONFIRMED_S,
        recovery_s=_RECOVERY_S,
        longest_recovery_s=_LONGEST_RECOVERY_S,
        relapses_s=_RELAPSES_S,
        state_ttl_s=_STATE_TTL_S,
        stream_ttl_s=_STREAM_TTL_S,
        stream_length=_STREAM_LENGTH,
    ),
    """
    local kind = redis.call('TYPE', state_key).ok
    if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', state_key) end
    local state = redis.call('HGETALL', state_key)
    local known, healthy = {}, false
    redis.call('HSET', state_key, 'seen:' .. worker, (is_healthy and '1' or '0') .. ' ' .. string.format('%.3f', now))
    for i = 1, #state, 2 do
        known[state[i]] = state[i + 1]
        local other = string.match(state[i], '^seen:(.*)$')
        if other and other ~= worker then
            local verdict, at = string.match(state[i + 1], '^([01]) ([%d.]+)$')
            if not tonumber(at) or now - at > record_ttl_s then
                redis.call('HDEL', state_key, state[i])
            elseif verdict == '1' then
                healthy = true
            end
        end
    end
    healthy = healthy or is_healthy
    redis.call('EXPIRE', state_key, state_ttl_s)
    -- Sent again, because the connection was lost before the reply.
    if known.given_id == alert_id then return known.given end

    local said = known.said
    local since = tonumber(known.since) or now
    local relapses = tonumber(known.relapses) or 0
    if said ~= 'healthy' and said ~= 'unhealthy' then
        if healthy then
            redis.call('HSET', state_key, 'said', 'healthy', 'since', now)
            return false
        end
    elseif healthy == (said == 'healthy') then
        redis.call('HDEL', state_key, 'well')
        return false
    end
    local verdict = 'unhealthy'
    if healthy then
        local well = tonumber(known.well)
        if not well then
            redis.call('HSET', state_key, 'well', now)
            return false
        end
        local wanted = math.min(recovery_s * 2 ^ math.min(math.max(0, relapses - 1), 16), longest_recovery_s)
        if now - well < wanted then return false end
        verdict = 'healthy'
    else
        local ill = tonumber(known.ill)
        if not ill or now - ill > record_ttl_s then
            redis.call('HSET', state_key, 'ill', now)
            return false
        end
        if now - ill < confirmed_s then return false end
        relapses = now - (tonumber(known.relapsed) or 0) > relapses_s and 1 or relapses + 1
        redis.call('HSET', state_key, 'relapsed', now)
    end
    redis.call('HDEL', state_key, 'well', 'ill')
    redis.call('HSET', state_key, 'said', verdict, 'since', now, 'relapses', relapses)
    local alert = cjson.decode(draft)
    alert.status, alert.at, alert.lasted_s, alert.relapses = verdict, now, now - since, math.max(0, relapses - 1)
    local text = cjson.encode(alert)
    kind = redis.call('TYPE', stream).ok
    if kind ~= 'stream' and kind ~= 'none' then redis.call('DEL', stream) end
    redis.call('XADD', stream, 'MAXLEN', '~', stream_length, '*', 'alert', text)
    redis.call('EXPIRE', stream, stream_ttl_s)
    redis.call('HSET', state_key, 'given_id', alert_id, 'given', text)
    return text
    """,
    known={"stream": keys.ALERTS},
    grows=True,
)
def _note(*, state_key: Key, worker: str, is_healthy: bool, draft: str, alert_id: str) -> bytes | None: ...


class Alert(BaseModel):
    """One change of a server's health.

    Attributes:
        id: Unique; whoever gets an alert twice knows it by that.
        at: Seconds since the epoch, by the clock of Redis.
        lasted_s: How long the server had been what it is no more.
        relapses: How often it has fallen ill in the hour before.
        error: Why it is ill, masked; None when it is well.
        worker: The worker whose check gave the alert.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: Literal[1] = 1
    id: str
    server: str
    status: Literal["healthy", "unhealthy"]
    at: float
    lasted_s: float
    relapses: int = 0
    error: str | None = None
    worker: str

    def __str__(self) -> str:
        """A sentence for people."""
        again = f", for the {_ordinal(self.relapses + 1)} time within an hour" if self.relapses else ""
        if self.status == "healthy":
            return f"MCP server {self.server} is healthy again, after {self.lasted_s:.0f} s."
        return f"MCP server {self.server} is unhealthy{again}: {self.error or 'no reason is known'}"


_subscribers: list[Callable[[Alert], None]] = []
_given: deque[Alert] = deque(maxlen=100)
_lock = threading.Lock()


def subscribe(tell: Callable[[Alert], None]) -> Callable[[], None]:
    """Have every alert that this process gives passed to `tell`, which must not wait; returns how to end that.

    Alerts of before are passed on at once: servers are checked before a worker is ready.
    """
    with _lock:
        _subscribers.append(tell)
        given = list(_given)
    for alert in given:
        tell(alert)

    def unsubscribe() -> None:
        with _lock:
            _subscribers.remove(tell)

    return unsubscribe


def note_command(record: HealthRecord) -> tuple[Any, ...]:
    """The Redis command that takes note of a check, to ride with others; `pass_on` understands its reply.

    It may be sent twice: the second time it gives the same alert.
    """
    # The script adds its verdict.
    draft: dict[str, Any] = {"v": 1, "id": str(uuid.uuid4()), "server": record.server, "worker": record.worker}
    if record.error is not None:
        draft["error"] = record.error
    return _note.command(
        state_key=keys.alert_state_key(record.server),
        worker=record.worker,
        is_healthy=record.healthy,
        draft=json.dumps(draft),
        alert_id=draft["id"],
    )


def pass_on(reply: bytes | None) -> Alert | None:
    """Log and pass on the alert, if any, that Redis replied with when it took note of a check."""
    if reply is None:
        return None
    alert = Alert.model_validate_json(reply)
    logger.log(logging.WARNING if alert.status == "unhealthy" else logging.INFO, "alert: %s", alert)
    with _lock:
        _given.append(alert)
        subscribers = list(_subscribers)
    for tell in subscribers:
        tell(alert)
    return alert


def _ordinal(number: int) -> str:
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"

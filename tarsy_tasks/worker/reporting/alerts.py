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
from tarsy_tasks.telemetry.health_records import RECORD_TTL_S, HealthRecord

__all__ = ["Alert", "build_observation", "publish", "subscribe"]

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

_NOTE = """
-- Notes what one worker saw; returns the alert that this gives, or false.
-- KEYS state, stream; ARGV worker, healthy, alert as JSON, seconds: observation, recovery, longest recovery, relapses,
-- state, stream; length of the stream, id of the alert, seconds until an illness is confirmed
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local state = redis.call('HGETALL', KEYS[1])
local known, healthy = {}, false
redis.call('HSET', KEYS[1], 'seen:' .. ARGV[1], ARGV[2] .. ' ' .. string.format('%.3f', now))
for i = 1, #state, 2 do
    known[state[i]] = state[i + 1]
    local worker = string.match(state[i], '^seen:(.*)$')
    if worker and worker ~= ARGV[1] then
        local verdict, at = string.match(state[i + 1], '^([01]) ([%d.]+)$')
        if not tonumber(at) or now - at > tonumber(ARGV[4]) then
            redis.call('HDEL', KEYS[1], state[i])
        elseif verdict == '1' then
            healthy = true
        end
    end
end
healthy = healthy or ARGV[2] == '1'
redis.call('EXPIRE', KEYS[1], ARGV[8])
-- Sent again, because the connection was lost before the reply.
if known.given_id == ARGV[11] then return known.given end

local said = known.said
local since = tonumber(known.since) or now
local relapses = tonumber(known.relapses) or 0
if said ~= 'healthy' and said ~= 'unhealthy' then
    if healthy then
        redis.call('HSET', KEYS[1], 'said', 'healthy', 'since', now)
        return false
    end
elseif healthy == (said == 'healthy') then
    redis.call('HDEL', KEYS[1], 'well')
    return false
end
local verdict = 'unhealthy'
if healthy then
    local well = tonumber(known.well)
    if not well then
        redis.call('HSET', KEYS[1], 'well', now)
        return false
    end
    local wanted = math.min(ARGV[5] * 2 ^ math.min(math.max(0, relapses - 1), 16), tonumber(ARGV[6]))
    if now - well < wanted then return false end
    verdict = 'healthy'
else
    local ill = tonumber(known.ill)
    if not ill or now - ill > tonumber(ARGV[4]) then
        redis.call('HSET', KEYS[1], 'ill', now)
        return false
    end
    if now - ill < tonumber(ARGV[12]) then return false end
    relapses = now - (tonumber(known.relapsed) or 0) > tonumber(ARGV[7]) and 1 or relapses + 1
    redis.call('HSET', KEYS[1], 'relapsed', now)
end
redis.call('HDEL', KEYS[1], 'well', 'ill')
redis.call('HSET', KEYS[1], 'said', verdict, 'since', now, 'relapses', relapses)
local alert = cjson.decode(ARGV[3])
alert.status, alert.at, alert.lasted_s, alert.relapses = verdict, now, now - since, math.max(0, relapses - 1)
local text = cjson.encode(alert)
kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'stream' and kind ~= 'none' then redis.call('DEL', KEYS[2]) end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[10], '*', 'alert', text)
redis.call('EXPIRE', KEYS[2], ARGV[9])
redis.call('HSET', KEYS[1], 'given_id', ARGV[11], 'given', text)
return text
"""


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


def build_observation(record: HealthRecord) -> tuple[Any, ...]:
    """The Redis command that takes note of a check, to ride with others; `publish` understands its reply.

    It may be sent twice: the second time it gives the same alert.
    """
    # The script adds its verdict.
    draft: dict[str, Any] = {"v": 1, "id": str(uuid.uuid4()), "server": record.server, "worker": record.worker}
    if record.error is not None:
        draft["error"] = record.error
    return (
        "EVAL",
        _NOTE,
        2,
        keys.alert_state_key(record.server),
        keys.ALERTS,
        record.worker,
        int(record.healthy),
        json.dumps(draft),
        RECORD_TTL_S,
        _RECOVERY_S,
        _LONGEST_RECOVERY_S,
        _RELAPSES_S,
        _STATE_TTL_S,
        _STREAM_TTL_S,
        _STREAM_LENGTH,
        draft["id"],
        _CONFIRMED_S,
    )


def publish(reply: bytes | None) -> Alert | None:
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

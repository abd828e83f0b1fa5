"""Alerts: a server failed or recovered, reported once, whichever worker saw it.

Owns when that is reported. Redis stores what every worker saw of a server, and one script decides there: a server is
unhealthy when two checks in a row, a few seconds apart, left no worker that finds it healthy. It is healthy again when
a worker found it so without a break, for a time that doubles with every relapse of the last hour. So a single failure
is not an alert, and a flapping server stays unhealthy. An alert is in the stream `tarsy:alerts` before subscribers get
it.
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

__all__ = ["Alert", "AlertFeed", "build_observation"]

logger = logging.getLogger(__name__)


# Returns the alert that this gives, or nothing.
@script(
    NOW,
    constants(
        record_ttl_s=RECORD_TTL_S,
        confirmed_s=4,  # a worker repeats a failed check after 5 s; what comes earlier is the same check
        recovery_s=25,  # with checks every 15 s: the second good one in a row
        longest_recovery_s=900,
        relapses_s=3600,
        state_ttl_s=24 * 3600,
        stream_ttl_s=30 * 24 * 3600,
        stream_length=1000,
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

    local reported = known.said
    local since = tonumber(known.since) or now
    local relapses = tonumber(known.relapses) or 0
    if reported ~= 'healthy' and reported ~= 'unhealthy' then
        if healthy then
            redis.call('HSET', state_key, 'said', 'healthy', 'since', now)
            return false
        end
    elseif healthy == (reported == 'healthy') then
        redis.call('HDEL', state_key, 'well')
        return false
    end
    local verdict = 'unhealthy'
    if healthy then
        local healthy_since = tonumber(known.well)
        if not healthy_since then
            redis.call('HSET', state_key, 'well', now)
            return false
        end
        local wanted = math.min(recovery_s * 2 ^ math.min(math.max(0, relapses - 1), 16), longest_recovery_s)
        if now - healthy_since < wanted then return false end
        verdict = 'healthy'
    else
        local unhealthy_since = tonumber(known.ill)
        if not unhealthy_since or now - unhealthy_since > record_ttl_s then
            redis.call('HSET', state_key, 'ill', now)
            return false
        end
        if now - unhealthy_since < confirmed_s then return false end
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
        id: Unique, so that a repeated alert can be recognised.
        at: Seconds since the epoch, by the clock of Redis.
        lasted_s: How long the previous status lasted.
        relapses: How often it became unhealthy in the hour before.
        error: Why it is unhealthy, masked; None when it is healthy.
        worker: The worker whose check caused the alert.
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

    @property
    def kind(self) -> str:
        """As in a `webhook.Notice`."""
        return "an alert"

    def as_event(self) -> dict[str, Any]:
        """The body of a request."""
        return {"type": f"server.{self.status}", "text": str(self), **self.model_dump(mode="json")}

    def __str__(self) -> str:
        """A sentence for operators."""
        again = f" ({self.relapses + 1} times within an hour)" if self.relapses else ""
        if self.status == "healthy":
            return f"MCP server {self.server} is healthy again, after {self.lasted_s:.0f} s."
        return f"MCP server {self.server} is unhealthy{again}: {self.error or 'the reason is unknown'}"


class AlertFeed:
    """Passes the alerts of this process on to its subscribers. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receivers: list[Callable[[Alert], None]] = []
        self._recent: deque[Alert] = deque(maxlen=100)

    def subscribe(self, receive: Callable[[Alert], None]) -> Callable[[], None]:
        """Pass every alert to `receive`, which must not wait; returns the function that ends that.

        Earlier alerts are passed on at once: servers are checked before a worker is ready.
        """
        with self._lock:
            self._receivers.append(receive)
            recent = list(self._recent)
        for alert in recent:
            receive(alert)

        def unsubscribe() -> None:
            with self._lock:
                self._receivers.remove(receive)

        return unsubscribe

    def publish(self, reply: bytes | None) -> Alert | None:
        """Log and pass on the alert, if any, in the reply to `build_observation`."""
        if reply is None:
            return None
        alert = Alert.model_validate_json(reply)
        logger.log(logging.WARNING if alert.status == "unhealthy" else logging.INFO, "alert: %s", alert)
        with self._lock:
            self._recent.append(alert)
            receivers = list(self._receivers)
        for receive in receivers:
            receive(alert)
        return alert


def build_observation(record: HealthRecord) -> tuple[Any, ...]:
    """The Redis command that stores the outcome of a check; its reply is for `AlertFeed.publish`.

    It may be sent twice, and then returns the same alert.
    """
    # The script adds status and times.
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

"""What the limits of calls are, and how far they are used: for operators.

Owns the report that workers write of the limits of their policy, so that the dashboard needs no policy, and reading the
counters (`broker.limit_counters`). It changes nothing of what is counted.
"""

from collections.abc import Iterable
from math import ceil
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.key_types import is_wrong_type
from tarsy_tasks.broker.script import NOW, constants
from tarsy_tasks.policy import LimitRule, Limits, describe_bytes, describe_wait

__all__ = ["REPORT_TTL_S", "CounterUse", "LimitReport", "LimitReports", "build_report", "read_reports", "read_use"]

REPORT_TTL_S = 120
"""How long a report is valid; workers replace it long before."""
_MOST_COUNTERS = 10
"""So many counters of a limit are shown: those that are used most."""
_MOST_RUNNING = 2000


class LimitReport(BaseModel):
    """One limit.

    Attributes:
        id: Part of the names of its keys.
        place: Where the policy has it.
        servers: Those that it is about.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    place: str
    servers: tuple[str, ...]
    rule: LimitRule

    @property
    def about(self) -> str:
        """Whose calls of which tools it counts, in words."""
        rule = self.rule
        each = f", each {' and '.join(rule.each)} for itself" if rule.each else ""
        tools = "all tools" if "*" in rule.tools else ", ".join(rule.tools)
        agents = "all agents" if "*" in rule.agents else ", ".join(rule.agents)
        return f"{tools} by {agents}{each}"


class LimitReports(BaseModel):
    """What a worker writes.

    Attributes:
        policy: The version of its policy.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: Literal[1] = 1
    policy: str
    limits: tuple[LimitReport, ...]


class CounterUse(BaseModel):
    """How far one counter of a limit is used.

    Attributes:
        counter: The names of agent, server and tool, as far as the limit counts for each of them; `*` otherwise.
        burst_used: Calls of the burst that are used.
        next_in_s: When the next call is in rate; 0: now.
        running: Calls that run.
        calls: Of this day.
        bytes: Of this day's results.
    """

    counter: str
    burst_used: int = 0
    next_in_s: float = 0.0
    running: int = 0
    calls: int = 0
    bytes: int = 0

    def describe(self, rule: LimitRule) -> str:
        """What is used of what, in words."""
        found: list[str] = []
        if rule.rate is not None:
            wait = f", next in {describe_wait(self.next_in_s)}" if self.next_in_s > 0 else ""
            found.append(f"{self.burst_used} of {rule.most_at_once} at once{wait}")
        if rule.concurrency is not None:
            found.append(f"{self.running} of {rule.concurrency} running")
        if rule.calls_per_day is not None:
            found.append(f"{self.calls} of {rule.calls_per_day} calls today")
        if rule.bytes_per_day is not None:
            found.append(f"{describe_bytes(self.bytes)} of {describe_bytes(rule.bytes_per_day)} today")
        return "; ".join(found)


def build_report(limits: Limits, policy: str, servers: Iterable[str]) -> str:
    """The report of a worker, for the key `LIMIT_REPORT`."""
    known = sorted(servers)
    reports = tuple(
        LimitReport(
            id=limit.id,
            place=limit.place,
            servers=tuple(server for server in known if limit.concerns_server(server)),
            rule=limit.rule,
        )
        for limit in limits.all
    )
    return LimitReports(policy=policy, limits=reports).model_dump_json(exclude_defaults=False)


def read_reports(redis: Any) -> LimitReports | None:
    """The limits that workers keep to; None if there are none, or no worker has reported any.

    Raises:
        ValueError: The report is damaged, or of another version.
    """
    try:
        text = redis.get(keys.LIMIT_REPORT)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise
        text = b""
    if text is None:
        return None
    try:
        return LimitReports.model_validate_json(text)
    except ValidationError:
        raise ValueError("the limits cannot be read: they are damaged or from another version") from None


_READ_USE = (
    constants(most=_MOST_COUNTERS, most_running=_MOST_RUNNING)
    + "\n"
    + NOW
    + r"""
    -- The leases are the first key; then come the rate, what is held, and the calls and bytes of the day.
    local function top(key)
        local found = redis.pcall('ZRANGE', key, 0, most - 1, 'REV')
        return found.err and {} or found
    end
    local function score(key, counter)
        local found = redis.pcall('ZSCORE', key, counter)
        return type(found) == 'string' and found or '0'
    end
    local lease_s, all = tonumber(ARGV[1]), {}
    for n = 2, #KEYS, 4 do
        local rate, held, calls, bytes = unpack(KEYS, n, n + 3)
        local rows, known, running = {}, {}, {}
        local function add(counter)
            if known[counter] or #rows >= most then return end
            known[counter] = true
            local left = string.format('%.6f', math.max(0, score(rate, counter) - now))
            local used, bytes_used = score(calls, counter), score(bytes, counter)
            rows[#rows + 1] = {counter, left, running[counter] or 0, used, bytes_used}
        end
        local members = redis.pcall('ZRANGE', held, 0, most_running - 1)
        for _, member in ipairs(members.err and {} or members) do
            local counter, lease = string.match(member, '^([^\n]*)\n(.*)$')
            local renewed = lease and redis.call('ZSCORE', KEYS[1], lease)
            if renewed and tonumber(renewed) >= now - lease_s then running[counter] = (running[counter] or 0) + 1 end
        end
        local busiest = {}
        for counter in pairs(running) do busiest[#busiest + 1] = counter end
        table.sort(busiest, function(a, b) return running[a] > running[b] end)
        for _, source in ipairs({busiest, top(rate), top(bytes), top(calls)}) do
            for place = 1, math.ceil(most / 2) do
                if source[place] then add(source[place]) end
            end
        end
        all[#all + 1] = rows
    end
    return all
    """
)


def read_use(redis: Any, reports: Iterable[LimitReport], lease_s: float) -> dict[str, list[CounterUse]]:
    """How far limits are used, by id: the counters that are used most.

    Args:
        redis: A redis-py client of the broker.
        lease_s: How long a lease lasts.
    """
    shown = list(reports)
    if not shown:
        return {}
    day = redis.time()[0] // 86400
    names = [
        keys.limit_key(f"{report.id}:{what}")
        for report in shown
        for what in ("rate", "held", f"calls:{day}", f"bytes:{day}")
    ]
    found = redis.eval_ro(_READ_USE, len(names) + 1, keys.LEASES, *names, lease_s)
    return {
        report.id: [_build_use(report.rule, *row) for row in rows] for report, rows in zip(shown, found, strict=True)
    }


def _build_use(rule: LimitRule, counter: bytes, left: bytes, running: int, calls: bytes, used: bytes) -> CounterUse:
    left_s, interval_s = float(left), rule.interval_s
    return CounterUse(
        counter=counter.decode(errors="replace"),
        burst_used=min(ceil(left_s / interval_s), rule.most_at_once) if interval_s else 0,
        next_in_s=max(0.0, left_s - interval_s * (rule.most_at_once - 1)) if interval_s else 0.0,
        running=running,
        calls=int(float(calls)),
        bytes=int(float(used)),
    )

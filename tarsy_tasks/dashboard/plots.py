"""The plots of the pages, as inline SVG.

Owns their shapes. They contain only numbers and our own words, never texts of servers or models, so they need no
escaping. Colours and sizes are in the style sheet: each part has a class.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby

from tarsy_tasks.dashboard.formats import count, duration, estimate, utc_time
from tarsy_tasks.dashboard.waterfall import Bar
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.telemetry.health_records import HealthStatus
from tarsy_tasks.telemetry.history import Minute
from tarsy_tasks.telemetry.metrics import BUCKETS_S, Distribution

__all__ = [
    "call_bars",
    "call_scale",
    "duration_bars",
    "latency_lines",
    "latency_scale",
    "outcome_bar",
    "sparkline",
    "uptime_strip",
    "waterfall_bar",
]

_CACHED = 2048
_HEIGHT = 100
_GOOD = (Outcome.OK,)
_NEUTRAL = (Outcome.REJECTED, Outcome.CANCELLED)


def uptime_strip(minutes: Sequence[Minute]) -> str:
    """A bar for each minute, coloured by its status."""
    return _uptime_strip(minutes[0].at, tuple(minute.status for minute in minutes))


@lru_cache(_CACHED)
def _uptime_strip(at: int, statuses: tuple[HealthStatus, ...]) -> str:
    counts = {status: statuses.count(status) for status in HealthStatus}
    label = ", ".join(f"{number} minutes {status}" for status, number in counts.items() if number)
    parts: list[str] = []
    begin = 0
    for status, run in groupby(statuses):
        end = begin + len(list(run))
        title = f"{status} from {utc_time(at + 60 * begin)[11:16]} to {utc_time(at + 60 * end)[11:16]} UTC"
        parts.append(_segment(status, begin, end - begin, title))
        begin = end
    return _svg("mcp-strip", len(statuses), 1, f"Last hour: {label}", parts)


def sparkline(minutes: Sequence[Minute]) -> str:
    """Durations of calls: a line for the median, an area up to the 95th percentile."""
    return _sparkline(tuple((minute.p50_s, minute.p95_s) for minute in minutes))


@lru_cache(_CACHED)
def _sparkline(quantiles: tuple[tuple[float | None, float | None], ...]) -> str:
    highest = max((p95 for _, p95 in quantiles if p95 is not None), default=0.0)
    if not highest:
        return ""
    parts = _quantile_lines(quantiles, highest)
    return _svg("mcp-spark", len(quantiles), _HEIGHT, f"Durations of the last hour, up to {estimate(highest)}", parts)


def latency_scale(minutes: Sequence[Minute]) -> float:
    """The duration at the upper edge of `latency_lines`, in seconds; 0 without calls."""
    return _round_up(max((minute.p95_s for minute in minutes if minute.p95_s is not None), default=0.0))


def latency_lines(minutes: Sequence[Minute]) -> str:
    """The same as `sparkline`, large and with grid lines."""
    highest = latency_scale(minutes)
    if not highest:
        return ""
    quantiles = tuple((minute.p50_s, minute.p95_s) for minute in minutes)
    parts = [*_grid(len(minutes)), *_quantile_lines(quantiles, highest)]
    for position, minute in enumerate(minutes):
        if minute.p95_s is not None:
            title = (
                f"{utc_time(minute.at)[11:16]} UTC: p50 {estimate(minute.p50_s)}, p95 {estimate(minute.p95_s)}, "
                f"{count(minute.duration.count)} calls"
            )
            parts.append(_segment("hover", position, 1, title, _HEIGHT))
    return _svg("mcp-chart", len(minutes), _HEIGHT, f"p50 and p95 of each minute, up to {estimate(highest)}", parts)


def call_scale(minutes: Sequence[Minute]) -> int:
    """The number at the upper edge of `call_bars`; 0 without calls."""
    return math.ceil(_round_up(max(minute.call_count for minute in minutes)))


def call_bars(minutes: Sequence[Minute], calls_path: str) -> str:
    """A bar for each minute: calls that succeeded, that failed, and so on. Each links to its calls.

    Args:
        calls_path: Address of the calls of the server, which ends with `?` or `&`, and needs no escaping besides `&`.
    """
    highest = call_scale(minutes)
    if not highest:
        return ""
    parts = _grid(len(minutes))
    for position, minute in enumerate(minutes):
        if not minute.call_count:
            continue
        good = sum(minute.calls.get(outcome, 0) for outcome in _GOOD)
        neutral = sum(minute.calls.get(outcome, 0) for outcome in _NEUTRAL)
        title = f"{utc_time(minute.at)[11:16]} UTC: " + ", ".join(
            f"{count(number)} {outcome}" for outcome, number in minute.calls.items()
        )
        top = float(_HEIGHT)
        bars: list[str] = []
        for kind, number in (
            ("failed", minute.failure_count),
            ("tool_error", minute.tool_error_count),
            ("neutral", neutral),
            ("ok", good),
        ):
            height = _HEIGHT * number / highest
            top -= height
            if number:
                bars.append(
                    f'<rect class="{kind}" x="{position + 0.12:g}" y="{top:.4g}" width=".76" height="{height:.4g}"/>'
                )
        hover = f'<rect class="hover" x="{position}" width="1" height="{_HEIGHT}"/>'
        # Not reached by the Tab key: sixty stops, and the form on the page of calls finds the same.
        path = f"{calls_path}since={minute.at}&until={minute.at + 60}".replace("&", "&amp;")
        parts.append(f'<a href="{path}" tabindex="-1">{"".join(bars)}{hover}<title>{title}</title></a>')
    label = f"Calls of each minute, up to {count(highest)}"
    return _svg("mcp-chart", len(minutes), _HEIGHT, label, parts, role="group")


def outcome_bar(calls: Mapping[Outcome, int]) -> str:
    """One bar: the share of each outcome."""
    return _outcome_bar(tuple(sorted(calls.items(), key=lambda each: list(Outcome).index(each[0]))))


@lru_cache(_CACHED)
def _outcome_bar(calls: tuple[tuple[Outcome, int], ...]) -> str:
    total = sum(number for _, number in calls)
    if not total:
        return ""
    parts: list[str] = []
    begin = 0.0
    for outcome, number in calls:
        length = 100 * number / total
        parts.append(_segment(outcome, f"{begin:.4g}", f"{length:.4g}", f"{count(number)} {outcome}"))
        begin += length
    label = ", ".join(f"{count(number)} {outcome}" for outcome, number in calls)
    return _svg("mcp-outcomes", 100, 1, label, parts)


@lru_cache(_CACHED)
def duration_bars(distribution: Distribution) -> str:
    """A bar for each range of durations."""
    counts = distribution.counts
    highest = max(counts)
    if not highest:
        return ""
    parts: list[str] = []
    for position, number in enumerate(counts):
        if not number:
            continue  # a page may have 500 of these
        # A few slow calls must be visible next to thousands of fast ones.
        height = _HEIGHT * (0.08 + 0.92 * math.sqrt(number / highest))
        bound = BUCKETS_S[position]
        is_last = math.isinf(bound)
        what = f"longer than {duration(BUCKETS_S[position - 1])}" if is_last else f"up to {duration(bound)}"
        parts.append(
            f'<rect class="bar" x="{position + 0.1:g}" y="{_HEIGHT - height:.4g}" width=".8" height="{height:.4g}">'
            f"<title>{what}: {count(number)} calls</title></rect>"
        )
    used = [bound for bound, number in zip(BUCKETS_S, counts, strict=True) if number]
    return _svg("mcp-histogram", len(counts), _HEIGHT, f"Durations, the longest up to {duration(used[-1])}", parts)


def waterfall_bar(bar: Bar, whole_s: float) -> str:
    """One bar of a waterfall, at its place on the axis."""
    scale = 1000 / max(whole_s, 1e-6)
    width = max(scale * bar.lasts_s, 4.0)
    x = min(scale * bar.begins_s, 1000 - width)
    label = f"{bar.label} after {duration(bar.begins_s)}, for {duration(bar.lasts_s)}"
    kind = "lost" if bar.is_lost else bar.step
    return _svg("mcp-bar", 1000, 1, label, [_segment(kind, f"{x:.5g}", f"{width:.5g}", bar.meaning)])


def _quantile_lines(quantiles: Sequence[tuple[float | None, float | None]], highest: float) -> list[str]:
    def y(seconds: float) -> str:
        return f"{_HEIGHT - (_HEIGHT - 4) * min(1.0, seconds / highest):.4g}"

    area: list[str] = []
    line: list[str] = []
    for is_known, run in groupby(enumerate(quantiles), lambda each: each[1][0] is not None):
        if not is_known:
            continue
        known = [(position + 0.5, p50 or 0.0, p95 or 0.0) for position, (p50, p95) in run]
        if len(known) == 1:
            # A single minute gets the width of a minute.
            ((middle, p50, p95),) = known
            known = [(middle - 0.4, p50, p95), (middle + 0.4, p50, p95)]
        upper = "L".join(f"{x:g} {y(p95)}" for x, _, p95 in known)
        area.append(f"M{known[0][0]:g} {_HEIGHT}L{upper}V{_HEIGHT}Z")
        line.append("M" + "L".join(f"{x:g} {y(p50)}" for x, p50, _ in known))
    return [f'<path class="p95" d="{"".join(area)}"/>', f'<path class="p50" d="{"".join(line)}"/>']


def _segment(kind: str, x: object, width: object, title: str, height: int = 1) -> str:
    return f'<rect class="{kind}" x="{x}" width="{width}" height="{height}"><title>{title}</title></rect>'


def _grid(width: int) -> list[str]:
    lines = "".join(f"M0 {_HEIGHT * part:g}H{width}" for part in (0.25, 0.5, 0.75))
    return [f'<path class="grid" d="{lines}"/>']


def _round_up(number: float) -> float:
    """The next larger round number, with a round half."""
    if not number > 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(number))
    return next(step * power for step in (1, 2, 4, 6, 10) if step * power >= number * 0.999999)


def _svg(kind: str, width: int, height: int, label: str, parts: Iterable[str], role: str = "img") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="{role}" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )

"""Metrics and health for Prometheus.

Owns the names of the series. A worker exports its own numbers, Flower those of all workers.
"""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from tarsy_tasks.broker.shares import Waiting
from tarsy_tasks.priorities import PRIORITIES
from tarsy_tasks.telemetry.health_records import HealthStatus, ServerHealth
from tarsy_tasks.telemetry.metrics import BUCKETS_S, NO_TOOL, Distribution, ToolMetrics

__all__ = ["build_health_families", "build_metric_families", "build_waiting_family"]

_HEALTH = {
    HealthStatus.HEALTHY: 1.0,
    HealthStatus.DEGRADED: 0.5,
    HealthStatus.UNHEALTHY: 0.0,
    HealthStatus.UNKNOWN: math.nan,
}
_LABELS = ("server", "tool")
_counter = partial(CounterMetricFamily, labels=_LABELS)
_gauge = partial(GaugeMetricFamily, labels=_LABELS)
_histogram = partial(HistogramMetricFamily, labels=_LABELS)
_BOUNDS = tuple("+Inf" if math.isinf(bucket) else str(bucket) for bucket in BUCKETS_S)


def build_metric_families(metrics: Iterable[ToolMetrics]) -> list[Metric]:
    """The series of all tools."""
    outcomes = "Tool calls by outcome; without a tool name if the server does not list the tool."
    sent = "From the start of a call in the worker until its answer was ready; only calls that were sent."
    calls = _counter("tarsy_calls", outcomes, labels=(*_LABELS, "outcome"))
    retries = _counter("tarsy_call_retries", "How often calls were sent again.")
    kept = "Calls that were answered without asking the server, from the cache of answers."
    cached = _counter("tarsy_calls_cached", kept)
    duration = _histogram("tarsy_call_duration_seconds", sent)
    wait = _histogram("tarsy_call_queue_wait_seconds", "From publishing a call until a worker started it.")
    running = _gauge("tarsy_calls_in_flight", "Calls that are running.")
    average = _gauge("tarsy_call_duration_recent_average_seconds", "Mean duration over the last 5 minutes.")
    codes = _counter("tarsy_call_errors", "Tool calls that were not ok, by error code.", labels=(*_LABELS, "code"))
    rules = "Tool calls that the policy denied, by kind of rule."
    denied = _counter("tarsy_calls_denied", rules, labels=(*_LABELS, "rule"))
    over = "Tool calls that were over a limit, by its place in the policy."
    limited = _counter("tarsy_calls_limited", over, labels=["server", "limit"])
    pauses = _counter("tarsy_server_pauses", "How often a server asked to wait.", labels=["server"])
    failing = _gauge(
        "tarsy_call_recent_failure_ratio",
        "Share of calls of the last 5 minutes that are unavailable, unknown or timeout.",
    )
    refusing = _gauge("tarsy_call_recent_tool_error_ratio", "Share of calls of the last 5 minutes with a tool_error.")
    error = _gauge("tarsy_call_last_error_timestamp_seconds", "When a call last failed.", labels=(*_LABELS, "code"))
    recreations = _counter("tarsy_session_recreations", "MCP sessions that replaced a lost one.", labels=["server"])
    attempts = _counter("tarsy_connection_attempts", "Attempts to open an MCP session.", labels=["server"])
    connections = _counter("tarsy_connections", "Attempts that opened an MCP session.", labels=["server"])
    suspensions = _counter("tarsy_server_suspensions", "Suspensions by workers.", labels=["server"])
    unaudited = _counter("tarsy_calls_unaudited", "Calls whose audit entry could not be written.", labels=["server"])
    what = "Progress and log lines of a server that belonged to no running call, or did not count."
    ignored = _counter("tarsy_server_events_ignored", what, labels=["server"])
    for each in metrics:
        labels = [each.server, each.tool]
        for outcome, count in each.calls.items():
            calls.add_metric([*labels, outcome], count)
        for code, count in each.codes.items():
            codes.add_metric([*labels, code], count)
        for kind, count in each.denials.items():
            denied.add_metric([*labels, kind], count)
        if each.tool == NO_TOOL:
            recreations.add_metric([each.server], each.recreations)
            attempts.add_metric([each.server], each.connection_attempts)
            connections.add_metric([each.server], each.connections)
            suspensions.add_metric([each.server], each.suspensions)
            pauses.add_metric([each.server], each.pauses)
            for place, count in each.limited.items():
                limited.add_metric([each.server, place], count)
            unaudited.add_metric([each.server], each.unaudited)
            ignored.add_metric([each.server], each.ignored_events)
        running.add_metric(labels, each.in_flight)
        if each.calls:
            retries.add_metric(labels, each.retries)
            cached.add_metric(labels, each.cached)
            _add_distribution(duration, labels, each.duration)
            _add_distribution(wait, labels, each.queue_wait)
        if each.moving_average_s is not None:
            average.add_metric(labels, each.moving_average_s)
        if each.failure_rate is not None:
            failing.add_metric(labels, each.failure_rate)
        if each.tool_error_rate is not None:
            refusing.add_metric(labels, each.tool_error_rate)
        if each.last_error is not None:
            error.add_metric([*labels, each.last_error.code], each.last_error.at)
    counters = [calls, codes, denied, limited, cached, retries, recreations, attempts, connections, suspensions, pauses]
    return [*counters, unaudited, ignored, duration, wait, running, average, failing, refusing, error]


def build_health_families(health: Mapping[str, ServerHealth]) -> list[Metric]:
    """The series of all servers' health."""
    meaning = "1: healthy, 0.5: degraded, 0: unhealthy, NaN: unknown."
    healthy = _gauge("tarsy_server_healthy", meaning, labels=["server"])
    for server, found in health.items():
        healthy.add_metric([server], _HEALTH[found.status])
    return [healthy]


def build_waiting_family(waiting: Mapping[str, Waiting]) -> Metric:
    """The series of the calls that wait, by server."""
    meaning = "Calls that wait in their queues, by priority."
    found = _gauge("tarsy_calls_waiting", meaning, labels=["server", "priority"])
    for server, counts in waiting.items():
        for priority, count in zip(PRIORITIES, counts, strict=True):
            found.add_metric([server, priority], count)
    return found


def _add_distribution(family: HistogramMetricFamily, labels: list[str], distribution: Distribution) -> None:
    if distribution.count:
        cumulated = accumulate(distribution.counts)
        family.add_metric(labels, list(zip(_BOUNDS, cumulated, strict=True)), distribution.sum_s)

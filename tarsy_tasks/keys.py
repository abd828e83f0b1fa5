"""Every name that the project uses in Redis: queues and keys.

Owns the spelling; whoever reads or writes Redis asks here, so that ACL rules and a clean-up can be read off one page.
"""

__all__ = [
    "ALERTS",
    "MEASURED_SERVERS",
    "MEASURING_WORKERS",
    "alert_state_key",
    "check_queue",
    "health_key",
    "in_flight_key",
    "metrics_key",
    "queue",
    "recent_metrics_key",
    "result_key_prefix",
    "server_of_queue",
    "serving_key",
]

ALERTS = "tarsy:alerts"
"""Stream of the latest alerts, a JSON object in the field `alert` of each entry."""
MEASURED_SERVERS = "tarsy:metrics"
"""Sorted set of the servers that have metrics, by the Redis time of the last ones."""
MEASURING_WORKERS = "tarsy:metrics-workers"
"""Sorted set of the worker processes that say what they have in flight, by the Redis time when they last did."""

_QUEUE_PREFIX = "mcp."
_CHECK_SUFFIX = ".check"


def queue(server: str) -> str:
    """The queue of a server's tool calls. Server ids have no dot, so no queue of calls ends like one of checks."""
    return f"{_QUEUE_PREFIX}{server}"


def check_queue(server: str) -> str:
    """The queue of a server's health checks."""
    return f"{_QUEUE_PREFIX}{server}{_CHECK_SUFFIX}"


def server_of_queue(name: str) -> str | None:
    """The server that a queue belongs to, or None for a queue that is not ours."""
    if not name.startswith(_QUEUE_PREFIX):
        return None
    return name.removeprefix(_QUEUE_PREFIX).removesuffix(_CHECK_SUFFIX)


def health_key(server: str) -> str:
    """The latest health record of a server, a JSON string with a TTL."""
    return f"tarsy:health:{server}"


def metrics_key(server: str) -> str:
    """The numbers of a server and its tools over all workers: a hash that expires when nothing is counted."""
    return f"tarsy:metrics:{server}"


def recent_metrics_key(server: str, minute: int) -> str:
    """The same numbers of one minute, counted since the epoch by Redis; they expire a few minutes later."""
    return f"tarsy:metrics:{server}:{minute}"


def in_flight_key(worker: str) -> str:
    """What a worker process has in flight, a JSON string with a TTL."""
    return f"tarsy:in-flight:{worker}"


def alert_state_key(server: str) -> str:
    """What was last said about a server's health, and what has been seen of it since: a hash with a TTL."""
    return f"tarsy:alert:{server}"


def serving_key(server: str) -> str:
    """Sorted set of the worker instances that serve a server, by the Redis time of their last heartbeat."""
    return f"tarsy:serving:{server}"


def result_key_prefix(task_id_prefix: str) -> str:
    """Begin of the keys, and of the channels of the same name, of the results of tasks whose id begins so (Celery's
    spelling).
    """
    return f"celery-task-meta-{task_id_prefix}"

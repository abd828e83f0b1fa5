"""Every name that the project uses in Redis: queues and keys.

Owns the spelling; whoever reads or writes Redis asks here, so that ACL rules and a clean-up can be read off one page.
"""

__all__ = [
    "HEALTH_WORKERS",
    "approved_tools_key",
    "check_queue",
    "check_sent_key",
    "health_key",
    "queue",
    "result_key_prefix",
    "server_of_queue",
    "tools_key",
    "worker_health_key",
]

_QUEUE_PREFIX = "mcp."
_CHECK_SUFFIX = ".check"

HEALTH_WORKERS = "tarsy:health-workers"
"""The workers that report health, a sorted set by the time of their last report."""


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
    """How the last check that came through a server's queue went, a JSON string with a TTL."""
    return f"tarsy:health:{server}"


def worker_health_key(worker: str) -> str:
    """How one worker finds its servers, a hash of JSON strings by server, with a TTL."""
    return f"tarsy:worker-health:{worker}"


def check_sent_key(server: str) -> str:
    """There for as long as no beat needs to send another check of a server."""
    return f"tarsy:check-sent:{server}"


def tools_key(server: str) -> str:
    """What a server offers, as last listed: a hash with a TTL."""
    return f"tarsy:tools:{server}"


def approved_tools_key(server: str) -> str:
    """The definitions of a server's tools that are trusted, a hash of JSON strings by tool, with a TTL."""
    return f"tarsy:approved-tools:{server}"


def result_key_prefix(task_id_prefix: str) -> str:
    """Begin of the keys, and of the channels of the same name, of the results of tasks whose id begins so (Celery's
    spelling).
    """
    return f"celery-task-meta-{task_id_prefix}"

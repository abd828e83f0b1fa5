"""Every name that the project uses in Redis: queues and keys.

Owns the spelling; whoever reads or writes Redis asks here, so that ACL rules and a clean-up can be read off one page.
"""

__all__ = [
    "IDEMPOTENCY_TTL_S",
    "LEASES",
    "POISONED",
    "SWEEPS",
    "UNACKED",
    "WAITING",
    "WORKERS",
    "call_marker",
    "check_queue",
    "health_key",
    "idempotency_key",
    "is_check_queue",
    "poison_key",
    "queue",
    "result_key",
    "server_of_queue",
    "serving_key",
]

UNACKED = "tarsy:unacked"
"""Hash, tag → queue, when it is garbage, and the message itself: all messages between publication and answer."""
WAITING = "tarsy:waiting"
"""Sorted set of the tags that lie in queues, by when they were last seen there."""
LEASES = "tarsy:leases"
"""Sorted set of the tags that workers hold, by when their leases were renewed."""
SWEEPS = "tarsy:sweeps"
"""Hash: when somebody last looked for lost messages, and until when nobody shall."""
POISONED = "tarsy:poisoned"
"""Sorted set of the tags that were set aside, by when."""
WORKERS = "tarsy:workers"
"""Sorted set of the live workers' instances, by when they last said so."""

_QUEUE_PREFIX = "mcp."
_CHECK_SUFFIX = ".check"

IDEMPOTENCY_TTL_S = 3500
"""How long an idempotency key stands for its call: a little less than results are kept."""


def queue(server: str) -> str:
    """The queue of a server's tool calls. Server ids have no dot, so no queue of calls ends like one of checks."""
    return f"{_QUEUE_PREFIX}{server}"


def check_queue(server: str) -> str:
    """The queue of a server's health checks."""
    return f"{_QUEUE_PREFIX}{server}{_CHECK_SUFFIX}"


def is_check_queue(name: str) -> bool:
    """Whether a queue is one of health checks."""
    return name.startswith(_QUEUE_PREFIX) and name.endswith(_CHECK_SUFFIX)


def server_of_queue(name: str) -> str | None:
    """The server that a queue belongs to, or None for a queue that is not ours."""
    if not name.startswith(_QUEUE_PREFIX):
        return None
    return name.removeprefix(_QUEUE_PREFIX).removesuffix(_CHECK_SUFFIX)


def health_key(server: str) -> str:
    """The latest health record of a server, a JSON string with a TTL."""
    return f"tarsy:health:{server}"


def call_marker(tag: str) -> str:
    """Hash of one call: how often it was delivered, what became of it, who began it. It has a TTL."""
    return f"tarsy:call:{tag}"


def poison_key(tag: str) -> str:
    """The books of a message that was set aside, a string with a TTL."""
    return f"tarsy:poison:{tag}"


def serving_key(server: str) -> str:
    """Sorted set of the instances of workers that serve a server, by when they last said so."""
    return f"tarsy:serving:{server}"


def result_key(task_id: str) -> str:
    """The key, and the channel, of a task's result (Celery's spelling)."""
    return f"celery-task-meta-{task_id}"


def idempotency_key(digest: str) -> str:
    """Which call an idempotency key stands for, a string with a TTL."""
    return f"tarsy:idempotency:{digest}"

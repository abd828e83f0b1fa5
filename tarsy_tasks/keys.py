"""Every name that the project uses in Redis: queues and keys.

Owns the spelling; whoever reads or writes Redis asks here, so that ACL rules and a clean-up can be read off one page.
"""

__all__ = ["check_queue", "health_key", "queue", "result_key_prefix", "server_of_queue"]

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


def result_key_prefix(task_id_prefix: str) -> str:
    """Begin of the keys, and of the channels of the same name, of the results of tasks whose id begins so (Celery's
    spelling).
    """
    return f"celery-task-meta-{task_id_prefix}"

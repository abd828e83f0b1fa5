"""What happens before a worker takes its first call: which servers it serves, and whether it can.

Owns the checks of the command line. It opens no session.
"""

import sys
from typing import Any, NoReturn

from celery.concurrency import get_implementation
from kombu import Queue

from tarsy_tasks import keys
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.worker.pool import TaskPool

__all__ = ["configure", "select_queues", "served_servers"]


def configure(worker: Any) -> None:
    """Give the worker the queues of all configured servers; `-Q` picks from them afterwards."""
    try:
        servers = worker.app.mcp_config.enabled_servers
    except ConfigError as error:
        _refuse(str(error))
    names = [name for server in servers for name in (keys.queue(server), keys.check_queue(server))]
    worker.app.conf.task_queues = [Queue(name, routing_key=name) for name in names]


def select_queues(worker: Any) -> None:
    """Check the pool and the queues that were asked for, and serve the checks of each server that is served."""
    pool = get_implementation(worker.pool_cls)
    if not issubclass(pool, TaskPool):
        _refuse(
            f"the pool {pool.__module__}:{pool.__name__} cannot run MCP calls: only tarsy_tasks.worker.pool:TaskPool "
            "holds the MCP sessions and lets time limits and revoke reach the MCP server. Leave -P out; scale with -c, "
            "and with more workers."
        )
    queues = worker.app.amqp.queues
    configured = worker.app.mcp_config.enabled_servers
    for name in list(queues.consume_from):
        server = keys.server_of_queue(str(name))
        if server is None:
            continue
        if server not in configured:
            known = ", ".join(keys.queue(server) for server in configured) or "none: no server is enabled"
            _refuse(f"-Q {name}: no such MCP server is enabled. Queues: {known}")
        queues.select_add(keys.check_queue(server))


def served_servers(app: Any) -> list[str]:
    """The ids of the servers whose calls or checks this worker takes."""
    taken = {keys.server_of_queue(name) for name in app.amqp.queues.consume_from}
    servers: list[str] = list(app.mcp_config.enabled_servers)
    return [server for server in servers if server in taken]


def _refuse(reason: str) -> NoReturn:
    print(f"tarsy_tasks: {reason}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
    raise SystemExit(2)

"""What happens before a worker takes its first call: which servers it serves, and whether it can.

Owns the checks of the command line, and the strict and the degraded start. How a server is connected, `connection`
knows.
"""

import asyncio
import logging
import sys
import uuid
from collections.abc import Iterable
from concurrent.futures import wait as wait_for
from typing import Any, NoReturn

from celery.concurrency import get_implementation
from celery.worker import state
from kombu import Queue

from tarsy_tasks.broker import keys
from tarsy_tasks.config import check_secrets
from tarsy_tasks.errors import CallError, ConfigError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.settings import load_settings
from tarsy_tasks.telemetry.probes import remove_leftovers
from tarsy_tasks.worker.calls.cancellation import CancellationStep
from tarsy_tasks.worker.process import canvas_limits
from tarsy_tasks.worker.process.bulkhead import QUEUE_ORDER
from tarsy_tasks.worker.process.pool import TaskPool
from tarsy_tasks.worker.reporting.health_checks import HealthStep
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["configure", "connect_servers", "select_queues", "served_servers"]

logger = logging.getLogger(__name__)

_UNAVAILABLE = 3
"""Exit code, the one that the command line has for this too."""
_RETRY_S = 1.0
_SIGNAL_S = 0.1
"""How often a start that waits for servers looks whether the worker was told to stop."""


def configure(worker: Any) -> None:
    """Give the worker its name among all workers that ever were, and the queues of all configured servers; `-Q` picks
    from them afterwards. What was ready under its name is not, until this worker is.
    """
    remove_leftovers(worker.hostname)
    worker.app.worker_instance = f"{worker.hostname}#{uuid.uuid4().hex[:8]}"
    try:
        servers = worker.app.mcp_config.enabled_servers
    except ConfigError as error:
        _refuse(str(error))
    worker.app.steps["worker"].add(HealthStep)
    worker.app.steps["consumer"].add(CancellationStep)
    names = [name for server in servers for name in (keys.queue(server), keys.check_queue(server))]
    # Here and not among the defaults, for agents have channels too and import nothing of the worker.
    worker.app.conf.broker_transport_options.setdefault("queue_order_strategy", QUEUE_ORDER)
    worker.app.conf.task_queues = [Queue(name, routing_key=name) for name in names]


def select_queues(worker: Any) -> None:
    """Check the pool and the queues that were asked for, and serve the checks of each server that is served. Warns of
    secrets that the configuration gives away.
    """
    pool = get_implementation(worker.pool_cls)
    if not issubclass(pool, TaskPool):
        _refuse(
            f"the pool {pool.__module__}:{pool.__name__} cannot run MCP calls: only "
            "tarsy_tasks.worker.process.pool:TaskPool holds the MCP sessions and lets time limits and revoke reach the MCP "
            "server. Leave -P out; scale with -c, and with more workers."
        )
    if canvas_limits.is_bound():
        canvas_limits.forget_own_tasks_of_celery(worker.app)
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
    for exposure in check_secrets():
        logger.warning("%s", exposure)


def served_servers(app: Any) -> list[str]:
    """The ids of the servers whose calls or checks this worker takes."""
    taken = {keys.server_of_queue(name) for name in app.amqp.queues.consume_from}
    servers: list[str] = list(app.mcp_config.enabled_servers)
    return [server for server in servers if server in taken]


def connect_servers(connections: Iterable[ServerConnection], loop: SessionLoop) -> None:
    """Connect all servers, the required ones first; a strict start waits here for the required ones, everything else
    goes on behind it.

    Raises:
        SystemExit: A required server is not connected in time; the log says which and why. Also when the worker was
            told to stop meanwhile.
    """
    settings = load_settings()
    strict = settings.startup == "strict"
    required = [connection for connection in connections if strict and connection.server.required]
    optional = [connection for connection in connections if connection not in required]
    connecting = loop.submit(_connect_required(required, settings.startup_timeout_s))
    loop.submit(_connect_optional(optional))
    if not required:
        return
    logger.info("waiting for MCP servers: %s", _names(required))
    try:
        while True:
            unfinished = wait_for((connecting,), _SIGNAL_S).not_done
            state.maybe_shutdown()
            if not unfinished:
                break
    finally:
        connecting.cancel()
    failures = connecting.result()
    for failure in failures:
        logger.critical("cannot start: %s", failure)
    if failures:
        raise SystemExit(_UNAVAILABLE)


async def _connect_required(connections: list[ServerConnection], timeout_s: float) -> list[str]:
    """Connect, trying again until the time is over; why some could not be connected, a line each."""
    deadline = asyncio.get_running_loop().time() + timeout_s

    async def connect(connection: ServerConnection) -> str | None:
        failure = f"MCP server `{connection.server.name}` was not connected within {timeout_s:g} s."
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        await connection.connected()
                    except CallError as error:
                        failure = str(error)
                        if error.code in (ErrorCode.SERVER_MISCONFIGURED, ErrorCode.SERVER_REFUSED):
                            return failure  # variables and credentials of this process will not change
                    else:
                        return None
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            return failure

    return [failure for failure in await asyncio.gather(*map(connect, connections)) if failure is not None]


async def _connect_optional(connections: list[ServerConnection]) -> None:
    outcomes = await asyncio.gather(*(each.connected() for each in connections), return_exceptions=True)
    failed = [each for each, outcome in zip(connections, outcomes, strict=True) if isinstance(outcome, CallError)]
    if failed:
        # Why, each has said for itself; a call tries again.
        logger.warning("started without MCP servers: %s", _names(failed))


def _names(connections: Iterable[ServerConnection]) -> str:
    return ", ".join(connection.server.name for connection in connections)


def _refuse(reason: str) -> NoReturn:
    print(f"tarsy_tasks: {reason}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
    raise SystemExit(2)

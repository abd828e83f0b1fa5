"""Which servers a worker serves, and how it connects them when it starts.

Owns how long a start waits, and which servers may be missing. The sessions are opened in `connection`.
"""

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import wait as wait_for
from typing import Any

from celery.worker import state

from tarsy_tasks.broker import keys
from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.masking.masked_text import MaskedText
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.settings import load_settings
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["connect_servers", "served_servers"]

logger = logging.getLogger(__name__)

_UNAVAILABLE = 3
"""Exit code; the command line uses the same one."""
_RETRY_S = 1.0
_SIGNAL_S = 0.1
"""How often a start that waits for servers checks whether the worker was told to stop."""


def served_servers(app: Any) -> list[str]:
    """The ids of the servers whose calls or checks this worker takes."""
    taken = {keys.server_of_queue(name) for name in app.amqp.queues.consume_from}
    servers: list[str] = list(app.mcp_config.enabled_servers)
    return [server for server in servers if server in taken]


def connect_servers(connections: Iterable[ServerConnection], loop: SessionLoop) -> None:
    """Connect all servers that do not start on demand. A strict start waits here for the required ones; the others
    connect in the background.

    Raises:
        SystemExit: A required server was not connected in time (the log names it and the reason), or the worker was
            told to stop.
    """
    settings = load_settings()
    strict = settings.startup == "strict"
    connections = [connection for connection in connections if not connection.is_idle]
    required = [connection for connection in connections if strict and connection.server.required]
    optional = [connection for connection in connections if connection not in required]
    connecting = loop.submit(_connect_required(required, settings.startup_timeout_s))
    loop.submit(_connect_optional(optional))
    if not required:
        return
    logger.info("waiting for MCP servers: %s", _names(required))
    try:
        while wait_for((connecting,), _SIGNAL_S).not_done:
            state.maybe_shutdown()
        state.maybe_shutdown()
    finally:
        connecting.cancel()
    failures = connecting.result()
    for failure in failures:
        logger.critical(MaskedText(f"cannot start: {failure}"))
    if failures:
        raise SystemExit(_UNAVAILABLE)


async def _connect_required(connections: list[ServerConnection], timeout_s: float) -> list[str]:
    """Connect, with retries until the time is over; returns a line for each server that was not connected."""
    deadline = asyncio.get_running_loop().time() + timeout_s

    async def connect(connection: ServerConnection) -> str | None:
        failure = f"MCP server `{connection.server.name}` was not connected within {timeout_s:g} s."
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        await connection.connected()
                    except NoSessionError as error:
                        failure = error.operator_text
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
    failed = [each for each, outcome in zip(connections, outcomes, strict=True) if isinstance(outcome, NoSessionError)]
    if failed:
        # Each connection has logged why; a call tries again.
        logger.warning("started without MCP servers: %s", _names(failed))


def _names(connections: Iterable[ServerConnection]) -> str:
    return ", ".join(connection.server.name for connection in connections)

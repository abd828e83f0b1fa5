"""The check of a connection: does its server list its tools, and if not, does a new session help?

Owns what a check does about a server that does not answer, and which servers it leaves alone: those that are busy with
calls, and those that do not run because nobody needs them. When it happens, and what is recorded, is in
`reporting.health_checks`. Runs on the session loop.
"""

import asyncio
import logging

from tarsy_tasks.worker.sessions.call_errors import describe_error
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.listing import ListingError

__all__ = ["check_connection"]

logger = logging.getLogger(__name__)


async def check_connection(connection: ServerConnection, list_s: float, connect_s: float) -> bool:
    """List the tools past every cache; without a session, or on failure, connect and list again.

    Args:
        connect_s: How long to wait for a connection, which is then still being made.

    Returns:
        Whether it listed them, or is idle. If not, it is busy with calls, none of which has exceeded its timeout.

    Raises:
        NoSessionError: The server does not answer.
    """
    if connection.is_idle:
        return True
    connection.availability.record_attempt()
    if (session := connection.session) is None:
        await _connect_within(connection, connect_s)
        return True
    name = connection.server.name
    try:
        async with asyncio.timeout(list_s):
            await session.list_tools()
    except Exception as error:
        if connection.is_idle:
            return True  # it was stopped meanwhile
        if isinstance(error, TimeoutError | ListingError) and session.is_busy:
            # It may handle one request at a time: a new session would cost the calls that it is busy with.
            found = "MCP server %s did not list its tools within %g s: it is busy with %d calls"
            logger.info(found, name, list_s, session.in_flight)
            return False
        logger.warning("MCP server %s failed its check: %s", name, describe_error(error, connection.masker))
        session.mark_lost("it failed its check")
        await _connect_within(connection, connect_s)
    else:
        connection.availability.record_answer()
    return True


async def _connect_within(connection: ServerConnection, connect_s: float) -> None:
    try:
        async with asyncio.timeout(connect_s):
            await connection.connected()
    except TimeoutError:
        raise connection.error or connection.errors.not_connected_within(connect_s) from None

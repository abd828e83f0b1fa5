"""Each MCP server's start, tried from here: connect, list the tools, and how long that takes.

It starts what a worker of this machine and user would start, with this environment, and ends it again.
"""

import asyncio
import time
from collections.abc import Collection, Iterator
from concurrent.futures import wait as wait_for

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.config.inheritance import Inheritance
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.errors import CallError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.maskers import build_common_masker
from tarsy_tasks.worker.sessions.connection import ServerConnection, build_connections
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session_loop import SessionLoop
from tarsy_tasks.worker.sessions.start_limiter import StartLimiter

__all__ = ["check_starts"]

_CLOSE_S = 15.0
_SLOW = 0.5
"""Of the time that it is given."""
_NO_CALL = " The tool did not run."


def check_starts(servers: Collection[ServerConfig], inheritance: Inheritance) -> Iterator[Finding]:
    """Start all of them, as many at a time as a worker would, and tell how each start went.

    Args:
        inheritance: What of this environment their processes get.
    """
    masker = build_common_masker(servers)
    context = SessionContext(inheritance)
    connections = build_connections(servers, context)
    loop, places = SessionLoop(), StartLimiter()
    loop.start()
    try:
        trying = [loop.submit(_try_in_turn(connection, places)) for connection in connections.values()]
        for attempt in trying:
            finding = attempt.result()
            yield Finding(finding.check, finding.severity, masker.mask(finding.text), finding.remedy)
    finally:
        wait_for([loop.submit(connection.close()) for connection in connections.values()], _CLOSE_S)
        loop.stop()
        context.child_watch.close()


async def _try_in_turn(connection: ServerConnection, places: StartLimiter) -> Finding:
    if connection.server.transport != "stdio":
        return await _try(connection)
    # The wait is no part of the time that is told, nor of the time that the server is given.
    async with places.slot():
        return await _try(connection)


async def _try(connection: ServerConnection) -> Finding:
    server = connection.server
    check, limit_s = f"start of {server.name}", server.timeouts.connect_s
    started = time.monotonic()
    try:
        # A server is given a second attempt, in the handshake era, within the time of both.
        async with asyncio.timeout(2 * limit_s):
            session = await connection.connected()
    except CallError as error:
        text, _, _ = error.text.partition(_NO_CALL)
        return Finding.error(check, text, _remedy(server, error))
    except TimeoutError:
        text = connection.errors.not_connected_within(2 * limit_s).text.partition(_NO_CALL)[0]
        return Finding.error(check, text, "see whether it starts by hand; timeouts.connect_s gives it more time")
    took_s = time.monotonic() - started
    text = (
        f"{took_s * 1000:.0f} ms: {server.transport}, protocol {session.protocol}, "
        f"{session.server_info}, {len(session.tools)} tools"
    )
    if not session.tools:
        return Finding.warning(check, text, "a server without tools is of no use to agents; look at its arguments")
    if took_s > _SLOW * limit_s:
        return Finding.warning(check, f"slow: {text}", f"it is given {limit_s:g} s: raise timeouts.connect_s")
    return Finding.ok(check, text)


def _remedy(server: ServerConfig, error: CallError) -> str:
    if error.code is ErrorCode.SERVER_MISCONFIGURED:
        return "set it where the workers run; run doctor there, too"
    if error.code is ErrorCode.SERVER_REFUSED:
        return "see whether its credentials and its address are right"
    if server.command is not None:
        return f"run it by hand: {server.command} and its args; is it installed, for this user, on this PATH?"
    return "see whether it runs, and whether this machine reaches its url"

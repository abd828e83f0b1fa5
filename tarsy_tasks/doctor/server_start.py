"""The start of each MCP server, tried from here: connect, list the tools, measure the time.

It starts what a worker of this user and environment would start, and stops it again.
"""

import asyncio
import time
from collections.abc import Collection, Iterator
from concurrent.futures import wait as wait_for

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.config.inheritance import Inheritance
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.errors import CallError
from tarsy_tasks.masking.masked_text import MaskedText
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.printable import make_visible
from tarsy_tasks.worker.maskers import build_common_masker
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connections import build_connections
from tarsy_tasks.worker.sessions.opening import SessionContext, StartLimiter, first_attempt_s
from tarsy_tasks.worker.sessions.session_loop import SessionLoop
from tarsy_tasks.worker.transport.agent_secrets import CredentialSource

__all__ = ["check_starts"]

_CLOSE_S = 15.0
_SLOW = 0.5
"""Share of `timeouts.connect_s`."""
_NO_CALL = " The tool did not run."


def check_starts(
    servers: Collection[ServerConfig], inheritance: Inheritance, credentials: CredentialSource
) -> Iterator[Finding]:
    """Start all servers, as many at a time as a worker would.

    Args:
        credentials: Where those of agents, and of the workers, come from.
    """
    masker = build_common_masker(servers)
    context = SessionContext(inheritance, credentials=credentials)
    connections = build_connections(servers, context)
    loop, limiter = SessionLoop(), StartLimiter()
    loop.start()
    try:
        starts = [loop.submit(_start_in_turn(connection, limiter)) for connection in connections.values()]
        for start in starts:
            finding = start.result()
            # Servers say parts of it: a line break could pretend to be another finding.
            text = make_visible(masker.mask(finding.text))
            yield Finding(finding.check, finding.severity, text, finding.remedy)
    finally:
        wait_for([loop.submit(connection.close()) for connection in connections.values()], _CLOSE_S)
        loop.stop()
        context.child_watch.close()


async def _start_in_turn(connection: ServerConnection, limiter: StartLimiter) -> Finding:
    if connection.server.transport != "stdio":
        return await _start(connection)
    # The wait for a turn counts neither in the reported time nor in the server's timeout.
    async with limiter.slot():
        return await _start(connection)


async def _start(connection: ServerConnection) -> Finding:
    server = connection.server
    if connection.agents is not None and connection.is_idle and not server.agent_credentials.service:
        text = "not tried: each agent has a session of its own, with its own credential"
        remedy = "to have it tried and checked, give the workers a credential (agent_credentials.service)"
        return Finding.note(f"start of {server.name}", text, remedy)
    check, limit_s = f"start of {server.name}", server.timeouts.connect_s
    started = time.monotonic()
    # Two attempts: the second one speaks the protocol of the handshake era.
    allowed_s = max(2 * limit_s, first_attempt_s(server))
    try:
        async with asyncio.timeout(allowed_s):
            session = await connection.connected()
    except CallError as error:
        return Finding.error(check, _without_call(error), _remedy(server, error))
    except TimeoutError:
        text = _without_call(connection.errors.not_connected_within(allowed_s))
        return Finding.error(check, text, "start it by hand to see why; timeouts.connect_s allows more time")
    took_s = time.monotonic() - started
    text = (
        f"{took_s * 1000:.0f} ms: {server.transport}, protocol {session.protocol}, "
        f"{session.server_info}, {len(session.tools)} tools"
    )
    if not session.tools:
        return Finding.warning(check, text, "check its arguments: agents cannot use a server without tools")
    if took_s > _SLOW * limit_s:
        return Finding.warning(check, f"slow: {text}", f"raise timeouts.connect_s, which is {limit_s:g} s")
    return Finding.ok(check, text)


def _without_call(error: CallError) -> str:
    """What is wrong, without what it means for a call."""
    text = error.text.partition(_NO_CALL)[0]
    return MaskedText(text) if isinstance(error.text, MaskedText) else text


def _remedy(server: ServerConfig, error: CallError) -> str:
    if error.code is ErrorCode.SERVER_MISCONFIGURED:
        return "set it where the workers run, and run doctor there"
    if error.code is ErrorCode.SERVER_REFUSED:
        return "check its credentials and its address"
    if server.native is not None:
        return f"check that the workers can import {server.native}, and that it has functions with @native_tool"
    if server.command is not None:
        return f"run it by hand ({server.command} with its args): is it installed for this user, on this PATH?"
    return "check that it runs, and that this machine can reach its url"

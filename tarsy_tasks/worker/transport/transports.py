"""From a server's configuration to the dispatcher of its messages.

Owns the choice of transport and its parameters. Variables are resolved here, each time just before connecting: no other
process needs the secrets of a server, and a secret may be replaced while the worker runs. What is read from files is
read in a thread: parsing 64 kB of variables takes 80 ms, and a network file system may not answer at all.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
from mcp.shared.dispatcher import Dispatcher

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.config.inheritance import Inheritance
from tarsy_tasks.config.resolved import ResolvedServer
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.time_budget import Suspension
from tarsy_tasks.worker.transport.agent_secrets import ReadCredentials, resolve_server
from tarsy_tasks.worker.transport.child_watch import ChildWatch
from tarsy_tasks.worker.transport.credentials import Credentials, address_of
from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.http_client import HttpClient, ssl_context, without_secrets
from tarsy_tasks.worker.transport.program import check_program
from tarsy_tasks.worker.transport.sandbox.preparation import in_sandbox
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tarsy_tasks.worker.transport.signed_in import SignInTokens
from tarsy_tasks.worker.transport.sse import sse_transport
from tarsy_tasks.worker.transport.stdio import StdioCommand, stdio_transport
from tarsy_tasks.worker.transport.streamable_http import streamable_http_transport

__all__ = ["ServerTransport"]

_READ_SLACK_S = 30.0
"""The HTTP read timeout is longer than every tool's own, because it would end more than the one call."""
_LINE_S = 100e-6
_EVENT_S = 60e-6
_POST_S = 2e-3
"""What a message costs the event loop: a line written, an event read (usually also an HTTP chunk), a POST."""


class ServerTransport:
    """Opens transports to one server, one after the other or in parallel.

    Attributes:
        address: Its URL without credentials, as it was last resolved; empty for stdio, and before.

    Args:
        on_secrets: Called with every credential before it is used, so that it is masked.
        long_work: For large messages.
        suspension: Begins when the server floods the worker for too long.
        read: Reads the credentials of the agent that it is used for; None: of no agent.
        sign_ins: As of `Credentials`.
    """

    def __init__(
        self,
        server: ServerConfig,
        output: ServerOutput,
        inheritance: Inheritance,
        watch: ChildWatch,
        on_secrets: Callable[[Iterable[str]], None],
        long_work: LongWork,
        suspension: Suspension,
        read: ReadCredentials | None = None,
        sign_ins: SignInTokens | None = None,
    ) -> None:
        self.address = ""
        self._read = read
        self._server = server
        self._output = output
        self._inheritance = inheritance
        self._watch = watch
        self._on_secrets = on_secrets
        self._credentials = Credentials(server, on_secrets, read, sign_ins)
        self._long_work = long_work
        is_stdio = server.transport == "stdio"
        carrier_s, reply_s = (0.0, _LINE_S) if is_stdio else (_EVENT_S, _POST_S)
        # One for all sessions: a server must not get another budget with each of them.
        self._flood = Flood(server.name, carrier_s=carrier_s, reply_s=reply_s, suspension=suspension)

    @property
    def ignored_events(self) -> int:
        """As of `Flood.ignored`, over all sessions."""
        return self._flood.ignored

    @property
    def identity(self) -> str:
        """As of `Credentials`, as it was last resolved; empty before."""
        return self._credentials.identity

    @asynccontextmanager
    async def open(self, on_end: Callable[[str], None]) -> AsyncGenerator[Dispatcher[Any]]:
        """A transport, not yet connected, that yields what the SDK's `ClientSession` sends and receives with.

        Args:
            on_end: Called with the reason when the transport itself notices that the server is gone (stdio and sse).

        Raises:
            ConfigError: A variable is not set, a file cannot be read, or a value is not valid.
        """
        resolved = await resolve_server(self._server, self._read)
        if self._server.transport == "stdio":
            resolved = replace(resolved, inherited=self._inheritance.environment_for(self._server, os.environ))
        self._credentials.resolved = resolved
        self._on_secrets(resolved.secrets)
        self.address = str(without_secrets(address_of(resolved))) if resolved.url is not None else ""
        match self._server.transport:
            case "stdio":
                transport = self._stdio(resolved, on_end)
            case "sse":
                transport = self._sse(resolved, on_end)
            case "http":
                transport = self._http(resolved)
        async with transport as dispatcher:
            yield dispatcher

    @asynccontextmanager
    async def _stdio(self, resolved: ResolvedServer, on_end: Callable[[str], None]) -> AsyncGenerator[Dispatcher[Any]]:
        command = self._command(resolved)
        check_program(command)
        async with AsyncExitStack() as stack:
            if resolved.sandbox is not None:
                command = await stack.enter_async_context(in_sandbox(self._server.name, resolved.sandbox, command))
            transport = stdio_transport(command, self._flood, self._long_work, self._output, self._watch, on_end)
            yield await stack.enter_async_context(transport)

    def _command(self, resolved: ResolvedServer) -> StdioCommand:
        assert resolved.command is not None
        own = {name: value.get_secret_value() for name, value in resolved.env.items()}
        return StdioCommand(
            command=resolved.command,
            args=[value.get_secret_value() for value in resolved.args],
            env={**resolved.inherited, **own},
            cwd=resolved.cwd,
            max_message_bytes=self._server.max_message_bytes,
        )

    @asynccontextmanager
    async def _http(self, resolved: ResolvedServer) -> AsyncGenerator[Dispatcher[Any]]:
        limit_bytes = self._server.max_message_bytes
        tls = await asyncio.to_thread(self._tls, resolved)
        async with (
            self._client(resolved, tls) as client,
            streamable_http_transport(
                address_of(resolved),
                client,
                max_message_bytes=limit_bytes,
                flood=self._flood,
                long_work=self._long_work,
                output=self._output,
            ) as dispatcher,
        ):
            yield dispatcher

    @asynccontextmanager
    async def _sse(self, resolved: ResolvedServer, on_end: Callable[[str], None]) -> AsyncGenerator[Dispatcher[Any]]:
        tls = await asyncio.to_thread(self._tls, resolved)
        async with (
            self._client(resolved, tls) as client,
            sse_transport(
                address_of(resolved),
                client,
                max_message_bytes=self._server.max_message_bytes,
                flood=self._flood,
                long_work=self._long_work,
                output=self._output,
                on_end=on_end,
            ) as dispatcher,
        ):
            yield dispatcher

    def _tls(self, resolved: ResolvedServer) -> ssl.SSLContext:
        try:
            return ssl_context(verify=self._server.verify_ssl, ca_file=resolved.ca_file)
        except OSError as error:
            at = f"servers.{self._server.name}.ca_file"
            raise ConfigError(f"{at}: {resolved.ca_file} cannot be used: {error}") from None

    def _client(self, resolved: ResolvedServer, tls: ssl.SSLContext) -> HttpClient:
        timeouts = self._server.timeouts
        longest_s = max(timeouts.longest_call_s, timeouts.list_s, timeouts.connect_s)
        self._credentials.use(resolved)
        timeout = httpx2.Timeout(timeouts.connect_s, read=longest_s + _READ_SLACK_S, pool=None)
        return HttpClient(tls, timeout, origin=address_of(resolved), credentials=self._credentials)

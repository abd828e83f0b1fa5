"""From a server's configuration to a pair of message streams.

Owns the choice of transport and what is passed down to it. Variables are resolved here, just before connecting: no
other process needs the secrets of a server.
"""

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.config.variables import resolve_variables
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.worker.masking import find_secret_values, known_secrets
from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.http_client import SurvivableClient, ssl_context
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tarsy_tasks.worker.transport.sse import sse_transport
from tarsy_tasks.worker.transport.stdio import StdioCommand, stdio_transport

__all__ = ["open_transport"]

_BROKER_VARIABLES = frozenset({"TARSY_REDIS_URL", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"})
_READ_SLACK_S = 30.0
"""The HTTP read timeout lies above every tool's own, for it would kill more than the one call."""
_IDLE_CONNECTION_S = 3.0
"""Below the servers' own limit, 5 s for Node and uvicorn: what is sent into a connection that is just being closed may
or may not have arrived.
"""
_LINE_S = 100e-6
_EVENT_S = 60e-6
_POST_S = 2e-3
"""What the event loop pays for a message: writing a line, reading an event (as a rule an HTTP chunk, too), a POST.
"""


def open_transport(server: ServerConfig, output: ServerOutput, on_end: Callable[[str], None]) -> Transport:
    """The transport to a server, not yet connected.

    Args:
        output: Receives what the server says outside of the protocol (stdio and sse).
        on_end: Called with the reason when the transport itself notices that the server is gone (stdio and sse).

    Raises:
        ConfigError: A variable is not set, or its value makes no valid setting.
    """
    resolved = resolve_variables(server, os.environ)
    known_secrets.add(find_secret_values(server, resolved, os.environ))
    match resolved.transport:
        case "stdio":
            return stdio_transport(
                _stdio_command(resolved), Flood(server.name, carrier_s=0.0, reply_s=_LINE_S), output, on_end
            )
        case "sse":
            return _sse_transport(resolved, output, on_end)
        case "http":
            return _http_transport(resolved)


def _stdio_command(server: ServerConfig) -> StdioCommand:
    assert server.command is not None
    return StdioCommand(
        command=server.command,
        args=server.args,
        env=_child_environment(server.env),
        cwd=server.cwd,
        max_message_bytes=server.max_message_bytes,
    )


def _child_environment(own: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _BROKER_VARIABLES}
    return inherited | dict(own)


@asynccontextmanager
async def _http_transport(server: ServerConfig) -> AsyncGenerator[Any]:
    assert server.url is not None
    async with (
        _http_client(server, _http_flood(server)) as client,
        # The client bounds the events.
        streamable_http_client(server.url, http_client=client, max_sse_event_size=None) as streams,
    ):
        yield streams


@asynccontextmanager
async def _sse_transport(
    server: ServerConfig, output: ServerOutput, on_end: Callable[[str], None]
) -> AsyncGenerator[Any]:
    assert server.url is not None
    async with (
        _http_client(server, None) as client,
        sse_transport(
            server.url,
            client,
            max_message_bytes=server.max_message_bytes,
            flood=_http_flood(server),
            output=output,
            on_end=on_end,
        ) as streams,
    ):
        yield streams


def _http_flood(server: ServerConfig) -> Flood:
    return Flood(server.name, carrier_s=_EVENT_S, reply_s=_POST_S)


def _http_client(server: ServerConfig, flood: Flood | None) -> SurvivableClient:
    headers = {name: value for name, value in server.headers.items() if value}
    if server.auth is not None:
        headers["Authorization"] = f"Bearer {server.auth.token}"
    timeouts = server.timeouts
    longest_s = max(timeouts.longest_call_s, timeouts.list_s, timeouts.connect_s)
    try:
        tls = ssl_context(verify=server.verify_ssl, ca_file=server.ca_file)
    except OSError as error:
        raise ConfigError(f"servers.{server.name}.ca_file: {server.ca_file} cannot be used: {error}") from None
    return SurvivableClient(
        max_message_bytes=server.max_message_bytes,
        flood=flood,
        headers=headers,
        verify=tls,
        # The default pool of 100 connections fails the calls above it after 30 s.
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=_IDLE_CONNECTION_S),
        timeout=httpx2.Timeout(timeouts.connect_s, read=longest_s + _READ_SLACK_S, pool=None),
    )

"""The taskiq application that `calls.py` compares with: one session of the SDK per MCP server, which all tasks share.

What a team may write in an afternoon. It has no acknowledgement, no retry, no masking and no audit.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from taskiq import TaskiqEvents
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

URL = os.environ["BENCHMARK_REDIS_URL"]
SERVERS = json.loads(Path(os.environ["TARSY_MCP_CONFIG"]).read_text())["mcpServers"]

# Without a timeout, because redis-py's own is shorter than the time that a worker may wait for a task, and ends it.
broker = ListQueueBroker(URL, socket_timeout=None).with_result_backend(
    RedisAsyncResultBackend(URL, result_ex_time=3600)
)
sessions: dict[str, Client] = {}
_holders: list[asyncio.Task[None]] = []


async def hold_session(name: str, server: dict[str, Any], connected: asyncio.Event) -> None:
    """One task enters and leaves a session, as the SDK asks for."""
    target = server.get("url") or StdioServerParameters(command=server["command"], args=server["args"])
    async with Client(target) as sessions[name]:
        await sessions[name].list_tools()
        connected.set()
        await asyncio.Event().wait()


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def connect(_: object) -> None:
    for name, server in SERVERS.items():
        connected = asyncio.Event()
        _holders.append(asyncio.create_task(hold_session(name, server, connected)))
        await connected.wait()


@broker.task
async def call_tool(server: str, tool: str, arguments: dict[str, Any]) -> str:
    result = await sessions[server].call_tool(tool, arguments)
    return result.content[0].text

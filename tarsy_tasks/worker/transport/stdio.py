"""stdio transport: one MCP server as a child process, every message bounded.

Owns the child, its pipes and its end. It replaces the SDK's `stdio_client`, whose reader is unbounded and takes
quadratic time on long lines, fails on one byte that is not UTF-8, and does not report that the server is gone. It knows
no sessions.
"""

import asyncio
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp_types import JSONRPCRequest

from tarsy_tasks.worker.transport.child_watch import ChildWatch, ProcessTree
from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.lines import BoundedLines, LongLine
from tarsy_tasks.worker.transport.messages import MessageChannel
from tarsy_tasks.worker.transport.server_output import ServerOutput

__all__ = ["StdioCommand", "stdio_transport"]

_CHUNK_BYTES = 32 * 1024
_BUFFER_BYTES = 256 * 1024
_DISCARD_PAUSE_S = 0.005
"""After each chunk of a line that is too long: discarding it must not block the event loop."""
_EXIT_GRACE_S = 2.0
_KILL_GRACE_S = 2.0
_POLL_S = 0.01
_CHECK_S = 2.0
"""Between two checks of the child's process tree; the second one reports a stopped server."""


@dataclass(frozen=True)
class StdioCommand:
    """How to start the server, all variables resolved. `env` is the child's environment without the worker's mark."""

    command: str
    args: Sequence[str] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    cwd: str | None
    max_message_bytes: int


@asynccontextmanager
async def stdio_transport(
    command: StdioCommand, flood: Flood, output: ServerOutput, watch: ChildWatch, on_end: Callable[[str], None]
) -> AsyncGenerator[Any]:
    """Start the server and yield its message streams; on exit the child and all its descendants are ended.

    Args:
        output: Receives stderr, and lines on stdout that are not JSON-RPC.
        on_end: Called with the reason when the server closes its stdin or stdout, exits, or is stopped; never when the
            context is left.

    Raises:
        OSError: The command cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        command.command,
        *command.args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=command.cwd,
        env=watch.mark(command.env),
        start_new_session=True,
        limit=_BUFFER_BYTES,
    )
    tree = ProcessTree(process.pid, watch)
    channel = MessageChannel(command.max_message_bytes, flood, output, "on stdout")
    tasks = [
        asyncio.create_task(channel.drain(_read_messages(process, channel), on_end)),
        asyncio.create_task(_write_messages(process, channel, on_end)),
        asyncio.create_task(_watch(tree, channel, on_end)),
        asyncio.create_task(_read_stderr(process, output)),
    ]
    try:
        yield channel.streams
    finally:
        with anyio.CancelScope(shield=True):
            channel.close()
            for task in tasks[:3]:
                task.cancel()
            try:
                await _stop(process, tree)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                _release_pipes(process)


async def _read_messages(process: Process, channel: MessageChannel) -> str:
    """Read to the end of stdout; returns why it ended."""
    assert process.stdout is not None
    async for line in _lines(process.stdout, channel.limit_bytes):
        await channel.put(line)
    return await _describe_end(process, "stdout")


async def _write_messages(process: Process, channel: MessageChannel, on_end: Callable[[str], None]) -> None:
    assert process.stdin is not None
    try:
        async for item in channel.from_session:
            data = await channel.encode(item)
            if data is None:
                continue
            if isinstance(item.message, JSONRPCRequest):
                channel.flood.expect_answer()
            process.stdin.write(data + b"\n")
            await process.stdin.drain()
    except OSError:
        # The server closed its stdin but may still run: closing the read side ends the session.
        on_end(await _describe_end(process, "stdin"))
        channel.end()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass


async def _watch(tree: ProcessTree, channel: MessageChannel, on_end: Callable[[str], None]) -> None:
    """A stopped process (SIGSTOP) keeps its pipes open and does not answer: closing the read side ends the session."""
    stopped = False
    while not stopped:
        await asyncio.sleep(_CHECK_S)
        stopped = tree.check()
    on_end("its process is stopped")
    channel.end()


async def _read_stderr(process: Process, output: ServerOutput) -> None:
    assert process.stderr is not None
    async for line in _lines(process.stderr, _CHUNK_BYTES):
        pause_s = output.record_line(line.head if isinstance(line, LongLine) else line)
        if pause_s:
            await asyncio.sleep(pause_s)


async def _lines(stream: asyncio.StreamReader, limit_bytes: int) -> AsyncIterator[bytes | LongLine]:
    """The lines of a stream; an unfinished last line counts."""
    lines = BoundedLines(limit_bytes)
    while chunk := await stream.read(_BUFFER_BYTES if lines.discarding else _CHUNK_BYTES):
        for line in lines.feed(chunk):
            yield line
        if lines.discarding:
            await asyncio.sleep(_DISCARD_PAUSE_S)
        elif len(chunk) == _CHUNK_BYTES:
            # More can be read without a wait: let the other servers run first.
            await asyncio.sleep(0)
    for line in lines.finish():
        yield line


async def _describe_end(process: Process, closed: str) -> str:
    """Why a pipe has ended: mostly because the process has, which shows a moment later."""
    if await _exited(process, 0.5):
        code = process.returncode
        assert code is not None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"its process {how}"
    return f"it closed its {closed}"


async def _exited(process: Process, within_s: float) -> bool:
    """Whether the process is dead. Not `process.wait()`, which also waits for pipes that a grandchild may hold open."""
    deadline = asyncio.get_running_loop().time() + within_s
    while process.returncode is None:
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def _stop(process: Process, tree: ProcessTree) -> None:
    """The spec's shutdown: close stdin, wait, terminate, wait, kill; the last two for the whole tree."""
    assert process.stdin is not None
    tree.update()  # now, while the processes that the server started can still be found below it
    process.stdin.close()
    try:
        # A stopped process reacts neither to a closed stdin nor to SIGTERM.
        if not tree.is_stopped() and not await _exited(process, _EXIT_GRACE_S):
            tree.signal(signal.SIGTERM)
            await _exited(process, _KILL_GRACE_S)
    finally:
        # Also after a clean exit, for the processes that the server left behind; also when the loop stops and this
        # coroutine is cancelled.
        tree.signal(signal.SIGKILL)
        await _exited(process, _KILL_GRACE_S)
        tree.release()


def _release_pipes(process: Process) -> None:
    """Close the subprocess transport, which otherwise lives until a descendant closes its pipe; nothing public does."""
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with suppress(PermissionError, ProcessLookupError):
            transport.close()

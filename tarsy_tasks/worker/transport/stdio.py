"""stdio transport: one MCP server as a child process, every message bounded.

Owns the child, its pipes and its end. It replaces the SDK's `stdio_client`, whose reader is unbounded and takes
quadratic time on long lines, fails on one byte that is not UTF-8, and does not report that the server is gone. It knows
no sessions.
"""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED

from tarsy_tasks.event_loop import next_beat
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.transport.child_watch import ChildWatch, ProcessTree
from tarsy_tasks.worker.transport.dispatcher import Message, MessageDispatcher
from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.lines import BoundedLines, LongLine
from tarsy_tasks.worker.transport.server_output import ServerOutput

__all__ = ["StdioCommand", "stdio_transport"]

_CHUNK_BYTES = 32 * 1024
_BUFFER_BYTES = 256 * 1024
_DISCARD_PAUSE_S = 0.005
"""After each chunk of a line that is too long: discarding it must not block the event loop."""
_LINES_AT_ONCE = 200
"""Of stderr, before the other servers have a turn."""
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
    command: StdioCommand,
    flood: Flood,
    long_work: LongWork,
    output: ServerOutput,
    watch: ChildWatch,
    on_end: Callable[[str], None],
) -> AsyncGenerator[MessageDispatcher]:
    """Start the server and yield the dispatcher of its messages; on exit the child and all its descendants are ended.

    Args:
        output: Receives stderr, and lines on stdout that are not JSON-RPC.
        on_end: Called with the reason when the server closes its stdin or stdout, exits, is stopped, or does not read;
            never when the context is left.

    Raises:
        OSError: The command cannot be started.
    """
    stdout, pipe, write_end = await _open_pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            command.command,
            *command.args,
            stdin=PIPE,
            stdout=write_end,
            stderr=PIPE,
            cwd=command.cwd,
            env=watch.mark(command.env),
            start_new_session=True,
            limit=_BUFFER_BYTES,
        )
    except BaseException:
        pipe.close()
        raise
    finally:
        os.close(write_end)
    tree = ProcessTree(process.pid, watch)
    dispatcher = _StdioDispatcher(process, on_end, command.max_message_bytes, flood, long_work, output, "on stdout")
    tasks = [
        asyncio.create_task(dispatcher.drain(_read_messages(process, stdout, dispatcher), on_end), name=flood.server),
        asyncio.create_task(_await_closed_stdin(process, dispatcher, on_end)),
        asyncio.create_task(_watch(tree, dispatcher, on_end)),
        asyncio.create_task(_read_stderr(process, output)),
    ]
    try:
        yield dispatcher
    finally:
        with anyio.CancelScope(shield=True):
            dispatcher.end()
            for task in tasks[:3]:
                task.cancel()
            try:
                await _stop(process, tree)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                pipe.close()
                _release_pipes(process)


async def _open_pipe() -> tuple[asyncio.StreamReader, asyncio.ReadTransport, int]:
    """A pipe for stdout, with the descriptor of the end that the server writes to.

    Through a pipe of `asyncio.subprocess`, each chunk takes one turn of the event loop more.
    """
    read_end, write_end = os.pipe()
    reader = asyncio.StreamReader(_BUFFER_BYTES)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
    )
    return reader, pipe, write_end


class _StdioDispatcher(MessageDispatcher):
    """Writes to the stdin of the server.

    Attributes:
        stdin_closed: Set when a message could not be written because the server has closed its stdin.
    """

    def __init__(self, process: Process, on_end: Callable[[str], None], *args: Any) -> None:
        super().__init__(*args)
        assert process.stdin is not None
        self._on_end = on_end
        self._stdin = process.stdin
        self.stdin_closed = asyncio.Event()

    async def _ready(self) -> None:
        try:
            await self._stdin.drain()
        except OSError:
            self.stdin_closed.set()
            await self.ended.wait()
            raise MCPError(CONNECTION_CLOSED, "Connection closed") from None

    def _timed_out_before_write(self) -> None:
        self._on_end("it does not read its input")

    def _write(self, message: Message, data: bytes) -> None:  # noqa: ARG002 (SSE looks at it)
        self._stdin.write(data + b"\n")
        if self._stdin.is_closing():
            self.stdin_closed.set()


async def _read_messages(process: Process, stdout: asyncio.StreamReader, dispatcher: MessageDispatcher) -> str:
    """Read to the end of stdout; returns why it ended."""
    async for line in _lines(stdout, dispatcher.limit_bytes, dispatcher.flood):
        await dispatcher.put(line)
    return await _describe_end(process, "stdout")


async def _await_closed_stdin(process: Process, dispatcher: _StdioDispatcher, on_end: Callable[[str], None]) -> None:
    """A server that closed its stdin may still run: ending the dispatcher ends the session."""
    await dispatcher.stdin_closed.wait()
    on_end(await _describe_end(process, "stdin"))
    dispatcher.end()


async def _watch(tree: ProcessTree, dispatcher: MessageDispatcher, on_end: Callable[[str], None]) -> None:
    """A stopped process (SIGSTOP) keeps its pipes open and does not answer: ending the dispatcher ends the session."""
    stopped = False
    while not stopped:
        await next_beat(_CHECK_S)
        stopped = tree.check()
    on_end("its process is stopped")
    dispatcher.end()


async def _read_stderr(process: Process, output: ServerOutput) -> None:
    """A server that writes much here has its stderr read more slowly; its answers are not delayed for that."""
    assert process.stderr is not None
    lines = BoundedLines(_CHUNK_BYTES)
    while chunk := await process.stderr.read(_CHUNK_BYTES):
        for count, line in enumerate(lines.feed(chunk), 1):
            output.record_line(line.head if isinstance(line, LongLine) else line)
            if count % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(output.pause_s())
    for line in lines.finish():
        output.record_line(line.head if isinstance(line, LongLine) else line)


async def _lines(stream: asyncio.StreamReader, limit_bytes: int, flood: Flood) -> AsyncIterator[bytes | LongLine]:
    """The lines of a stream; an unfinished last line counts."""
    lines = BoundedLines(limit_bytes)
    # Within a long line, which costs nothing before its end, whatever is there is read at once.
    while chunk := await stream.read(most := _BUFFER_BYTES if lines.size_bytes else _CHUNK_BYTES):
        has_line = False
        for line in lines.feed(chunk):
            has_line = True
            yield line
        if not has_line:
            flood.charge_chunk(len(chunk))
            await flood.pause()
        if lines.discarding:
            await asyncio.sleep(_DISCARD_PAUSE_S)
        elif len(chunk) == most:
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
        # Even after a clean exit, for the processes that the server left behind; even when the loop stops and this
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

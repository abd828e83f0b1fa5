"""stdio transport: one MCP server as a child process, every message bounded.

Owns the child, its pipes and its end. It replaces the SDK's `stdio_client`, whose reader is unbounded and takes
quadratic time on long lines, dies of one byte that is not UTF-8, and says nothing when the server is gone. It knows no
sessions.
"""

import asyncio
import logging
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from tarsy_tasks.worker.transport.child_watch import ProcessTree, child_watch
from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.lines import BoundedLines, LongLine
from tarsy_tasks.worker.transport.messages import FromServer, MessageStreams, encode_message, parse_message
from tarsy_tasks.worker.transport.server_output import ServerOutput

__all__ = ["StdioCommand", "stdio_transport"]

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 32 * 1024
_BUFFER_BYTES = 256 * 1024
_QUEUED_MESSAGES = 64
_DISCARD_PAUSE_S = 0.005
"""After each chunk of a line that is too long: what is thrown away must not take the event loop."""
_EXIT_GRACE_S = 2.0
_KILL_GRACE_S = 2.0
_POLL_S = 0.01
_LOOK_S = 2.0
"""Between two looks at the child's family; a stopped server is noticed with the second one."""


@dataclass(frozen=True)
class StdioCommand:
    """How to start the server, all variables resolved. `env` is the child's environment, but for the worker's mark."""

    command: str
    args: Sequence[str] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    cwd: str | None
    max_message_bytes: int


@asynccontextmanager
async def stdio_transport(
    command: StdioCommand, flood: Flood, output: ServerOutput, on_end: Callable[[str], None]
) -> AsyncGenerator[MessageStreams]:
    """Start the server and yield its message streams; on exit the child and all that it started are gone.

    Args:
        command: What to start.
        flood: Slows the reading of a server that says too much.
        output: Receives stderr, and lines on stdout that are no JSON-RPC.
        on_end: Called with the reason when the server closes its stdin or stdout, exits, or is stopped; never on a
            regular exit.

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
        env=child_watch.mark(command.env),
        start_new_session=True,
        limit=_BUFFER_BYTES,
    )
    family = ProcessTree(process.pid)
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](_QUEUED_MESSAGES)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](_QUEUED_MESSAGES)
    tasks = [
        asyncio.create_task(_read_messages(process, command.max_message_bytes, to_session, flood, output, on_end)),
        asyncio.create_task(_write_messages(process, from_session, to_session, flood, on_end)),
        asyncio.create_task(_watch(family, to_session, on_end)),
        asyncio.create_task(_read_stderr(process, output)),
    ]
    try:
        yield from_server, to_server
    finally:
        with anyio.CancelScope(shield=True):
            for stream in (from_server, to_server, to_session, from_session):
                stream.close()
            for task in tasks[:3]:
                task.cancel()
            try:
                await _stop(process, family)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                _release_pipes(process)


async def _read_messages(
    process: Process,
    limit_bytes: int,
    to_session: FromServer,
    flood: Flood,
    output: ServerOutput,
    on_end: Callable[[str], None],
) -> None:
    assert process.stdout is not None
    try:
        async for line in _lines(process.stdout, limit_bytes):
            if flood.admit(line if isinstance(line, bytes) else line.head):
                message = parse_message(line, limit_bytes)
                if message is not None:
                    try:
                        to_session.send_nowait(message)
                    except anyio.WouldBlock:
                        await to_session.send(message)
                elif pause_s := _record_garbage(line, output):
                    await asyncio.sleep(pause_s)
            await flood.pause()
        on_end(await _describe_end(process, "stdout"))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    except Exception as error:
        # Without a reader its calls would wait for their timeouts, one after the other.
        logger.exception("the messages of an MCP server cannot be read")
        on_end(f"its messages could not be read ({type(error).__name__})")
    finally:
        to_session.close()


async def _write_messages(
    process: Process,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    to_session: FromServer,
    flood: Flood,
    on_end: Callable[[str], None],
) -> None:
    assert process.stdin is not None
    try:
        async for item in from_session:
            data = await encode_message(item, to_session)
            if data is None:
                continue
            if isinstance(item.message, JSONRPCRequest):
                flood.expect_answer()
            process.stdin.write(data + b"\n")
            await process.stdin.drain()
    except OSError:
        # The server closed its stdin but may live on: ending the read side tells the session that it is over.
        on_end(await _describe_end(process, "stdin"))
        to_session.close()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass


async def _watch(family: ProcessTree, to_session: FromServer, on_end: Callable[[str], None]) -> None:
    """A stopped process (SIGSTOP) keeps its pipes open and answers nothing: ending the read side ends the session."""
    stopped = False
    while not stopped:
        await asyncio.sleep(_LOOK_S)
        stopped = family.look()
    on_end("its process is stopped")
    to_session.close()


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
            # More lies ready, which comes without a wait: the other servers get their turn first.
            await asyncio.sleep(0)
    for line in lines.finish():
        yield line


def _record_garbage(line: bytes | LongLine, output: ServerOutput) -> float:
    if isinstance(line, LongLine):
        what = f"a line of {line.size_bytes} bytes on stdout, above max_message_bytes and without a request id"
        return output.record_line(line.head, level=logging.WARNING, what=what)
    return output.record_line(line, level=logging.WARNING, what="not JSON-RPC, on stdout")


async def _describe_end(process: Process, closed: str) -> str:
    """Why a pipe has ended: mostly because the process has, which is seen a moment later."""
    if await _exited(process, 0.5):
        code = process.returncode
        assert code is not None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"its process {how}"
    return f"it closed its {closed}"


async def _exited(process: Process, within_s: float) -> bool:
    """Whether the process is dead. Not `process.wait()`: that waits for the pipes too, which a grandchild may hold
    open.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    while process.returncode is None:
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def _stop(process: Process, family: ProcessTree) -> None:
    """The spec's shutdown: close stdin, wait, then terminate and at last kill the whole family."""
    assert process.stdin is not None
    family.search()  # now, while those that the server started can still be found below it
    process.stdin.close()
    try:
        # A stopped process notices neither a closed stdin nor SIGTERM.
        if not family.is_stopped() and not await _exited(process, _EXIT_GRACE_S):
            family.signal(signal.SIGTERM)
            await _exited(process, _KILL_GRACE_S)
    finally:
        # Also after a clean exit: what the server started and left behind is still there. And also when the loop is
        # stopping and nobody has the time to wait.
        family.signal(signal.SIGKILL)
        await _exited(process, _KILL_GRACE_S)
        family.release()


def _release_pipes(process: Process) -> None:
    """Close the subprocess transport, which would otherwise live until a descendant lets go of a pipe; nothing public
    does it.
    """
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with suppress(PermissionError, ProcessLookupError):
            transport.close()

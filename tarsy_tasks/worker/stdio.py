"""stdio transport: one MCP server as a child process, every message bounded.

Owns the child, its pipes and its end. It replaces the SDK's `stdio_client`, whose reader is unbounded and takes
quadratic time on long lines, dies of one byte that is not UTF-8, and says nothing when the server is gone. It knows no
sessions.
"""

import asyncio
import json
import logging
import re
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest, jsonrpc_message_adapter

from tarsy_tasks.worker.child_watch import Family
from tarsy_tasks.worker.server_output import ServerOutput
from tarsy_tasks.worker.transport_errors import NOT_SENT, UNREADABLE_ANSWER, message_too_large

__all__ = ["MessageStreams", "StdioCommand", "stdio_transport"]

MessageStreams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
"""What a transport gives the SDK's `Client`: messages from the server, messages to it."""

_CHUNK_BYTES = 256 * 1024
_QUEUED_MESSAGES = 64
_DISCARD_PAUSE_S = 0.005
"""After each chunk of a line that is too long: what is thrown away must not take the event loop."""
_EXIT_GRACE_S = 2.0
_KILL_GRACE_S = 2.0
_POLL_S = 0.01
_LOOK_S = 2.0
"""Between two looks at the child's family; a stopped server is noticed with the second one."""
_KEPT_BYTES = 1024
"""Of a line that is too long, this much of either end is kept: somewhere in it stands the request id."""

_ID = rb'"id"\s*:\s*(-?\d+|"[^"\\]{0,200}")\s*'
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb",")
_ID_LAST = re.compile(rb",\s*" + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


@dataclass(frozen=True)
class StdioCommand:
    """How to start the server, all variables resolved. `env` is the child's whole environment."""

    command: str
    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None
    max_message_bytes: int


@dataclass(frozen=True)
class _LongLine:
    """A line above the limit, of which only the ends were kept."""

    head: bytes
    tail: bytes
    size_bytes: int


@asynccontextmanager
async def stdio_transport(
    command: StdioCommand, output: ServerOutput, on_end: Callable[[str], None]
) -> AsyncGenerator[MessageStreams]:
    """Start the server and yield its message streams; on exit the child and all that it started are gone.

    Args:
        command: What to start.
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
        env=dict(command.env),
        start_new_session=True,
        limit=_CHUNK_BYTES,
    )
    family = Family(process.pid)
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](_QUEUED_MESSAGES)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](_QUEUED_MESSAGES)
    tasks = [
        asyncio.create_task(_read_messages(process, command.max_message_bytes, to_session, output, on_end)),
        asyncio.create_task(_write_messages(process, from_session, to_session, on_end)),
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
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    output: ServerOutput,
    on_end: Callable[[str], None],
) -> None:
    assert process.stdout is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for line in _lines(process.stdout, limit_bytes):
            message = _parse(line, limit_bytes)
            if message is not None:
                try:
                    to_session.send_nowait(message)
                except anyio.WouldBlock:
                    await to_session.send(message)
            elif pause_s := _record_garbage(line, output):
                await asyncio.sleep(pause_s)
        on_end(await _describe_end(process, "stdout"))
        to_session.close()


async def _write_messages(
    process: Process,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[str], None],
) -> None:
    assert process.stdin is not None
    try:
        async for item in from_session:
            try:
                data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            except ValueError as error:
                await _refuse_request(item, error, to_session)
                continue
            process.stdin.write(data + b"\n")
            await process.stdin.drain()
    except OSError:
        # The server closed its stdin but may live on: ending the read side tells the session that it is over.
        on_end(await _describe_end(process, "stdin"))
        to_session.close()
    except anyio.ClosedResourceError:
        pass


async def _refuse_request(
    item: SessionMessage, error: ValueError, to_session: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    """Answer a request that is no JSON here, so that it costs itself only and not the session."""
    if isinstance(item.message, JSONRPCRequest):
        refusal = ErrorData(code=NOT_SENT, message=f"the request cannot be written as JSON: {type(error).__name__}")
        await to_session.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=item.message.id, error=refusal)))


async def _watch(
    family: Family, to_session: MemoryObjectSendStream[SessionMessage | Exception], on_end: Callable[[str], None]
) -> None:
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
        pause_s = output.record_line(line.head if isinstance(line, _LongLine) else line)
        if pause_s:
            await asyncio.sleep(pause_s)


async def _lines(stream: asyncio.StreamReader, limit_bytes: int) -> AsyncIterator[bytes | _LongLine]:
    """Split a stream into lines in linear time, holding at most `limit_bytes` and a chunk; an unfinished last line
    counts.
    """
    pieces: list[bytes] = []
    size = 0
    head = tail = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if size + len(end) > limit_bytes:
                head = (head or b"".join(pieces) + end)[:_KEPT_BYTES]
                yield _LongLine(head, (tail + end)[-_KEPT_BYTES:], size + len(end))
            elif pieces:
                pieces.append(end)
                yield b"".join(pieces)
            else:
                yield end
            pieces, size, head, tail = [], 0, b"", b""
        if rest:
            size += len(rest)
            tail = (tail + rest)[-_KEPT_BYTES:]
            if size <= limit_bytes:
                pieces.append(rest)
            elif not head:
                head = (b"".join(pieces) + rest)[:_KEPT_BYTES]
                pieces = []
            if head:
                await asyncio.sleep(_DISCARD_PAUSE_S)
    if head:
        yield _LongLine(head, tail, size)
    elif pieces:
        yield b"".join(pieces)


def _parse(line: bytes | _LongLine, limit_bytes: int) -> SessionMessage | None:
    """The message on a line, or None for what is no JSON-RPC."""
    if isinstance(line, _LongLine):
        return _stand_in(line.head, line.tail, message_too_large(line.size_bytes, limit_bytes))
    if b'"jsonrpc"' not in line:
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        pass
    try:
        # One bad byte, or half of a surrogate pair, must not cost the message: the SDK's strict reader loses the whole
        # session to it.
        whole = json.dumps(json.loads(line.decode("utf-8", "replace")), ensure_ascii=False).encode("utf-8", "replace")
        return SessionMessage(jsonrpc_message_adapter.validate_json(whole, by_name=False))
    except (ValueError, RecursionError) as error:
        unreadable = ErrorData(code=UNREADABLE_ANSWER, message=f"it cannot be read ({type(error).__name__})")
        return _stand_in(line[:_KEPT_BYTES], line[-_KEPT_BYTES:], unreadable)


def _stand_in(head: bytes, tail: bytes, error: ErrorData) -> SessionMessage | None:
    """An error in place of an answer that cannot be delivered, if its request id can be found at either end of it."""
    found = _ID_FIRST.match(head) or _ID_LAST.search(tail)
    if found is None:
        return None
    word = found[1].decode("utf-8", "replace")
    request_id = word.strip('"') if word.startswith('"') else int(word)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))


def _record_garbage(line: bytes | _LongLine, output: ServerOutput) -> float:
    if isinstance(line, _LongLine):
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


async def _stop(process: Process, family: Family) -> None:
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

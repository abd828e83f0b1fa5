"""Servers that are lost and replaced again and again leave nothing behind in the worker.

The long form, a thousand cycles, is benchmarks/recovery.py.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker.delivery import AuditWrite
from tarsy_tasks.broker.messages import CallMessage
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Answer
from tarsy_tasks.models import CallInfo, ToolDefinition, ToolResult
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.invocation import Invocation, may_replay
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.maskers import build_masker
from tarsy_tasks.worker.reporting.call_record import CallRecord
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session import Session
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, read_command, until, wait_until

WARM_UP = 15
CYCLES = 40
SLACK_BYTES = 6_000_000
"""A session that stays behind costs a tenth to one megabyte."""
SLACK = 2
QUICKLY = {"min_wait_s": 0.01, "max_wait_s": 0.02}
HTTP_PATH = "old/sse/forgets-404"


@pytest.fixture
def worker(start_worker: StartWorker, witness_url: str, directory: Path) -> Worker:
    stdio = witness(Ledger(directory / "stdio"), retry=QUICKLY)
    http = {"url": f"{witness_url}/{HTTP_PATH}", "retry": QUICKLY}
    return start_worker({"stdio": stdio, "http": http}, arguments=["-c", "8"])


def test_memory_descriptors_threads_and_processes_stay_flat(worker: Worker, directory: Path) -> None:
    tools = ToolExecutor(timeout_s=20)
    process = psutil.Process(worker.pid)

    def look(server: str) -> None:
        calls = [ToolCall(id=str(n), name=f"{server}.look", arguments={"key": str(n)}) for n in range(4)]
        results = tools.execute_many(calls)
        assert {result.outcome for result in results} == {Outcome.OK}, results

    def cycle() -> None:
        kill_server(process, directory / "stdio")
        look("stdio")
        tools.execute(ToolCall(id="f", name="http.forget", arguments={}))
        look("http")

    def held() -> tuple[int, int, int]:
        return process.num_fds(), process.num_threads(), len(process.children(recursive=True))

    look("stdio")
    look("http")
    for _ in range(WARM_UP):
        cycle()
    wait_until(lambda: len(servers_of(process, directory / "stdio")) == 1, "old servers are gone")
    before, before_bytes = held(), process.memory_info().rss
    for _ in range(CYCLES):
        cycle()
    wait_until(
        lambda: all(now <= then + SLACK for now, then in zip(held(), before, strict=True)),
        f"descriptors, threads and processes are as few as before, {before}, and not {held()}",
    )
    grown_bytes = process.memory_info().rss - before_bytes
    assert grown_bytes < SLACK_BYTES
    assert Ledger(directory / "stdio").starts == WARM_UP + CYCLES + 1
    assert Ledger(directory / HTTP_PATH.replace("/", "-")).starts == WARM_UP + CYCLES + 1


@asynccontextmanager
async def connection_to(entry: dict[str, Any]) -> AsyncGenerator[ServerConnection]:
    """A connection in this process, without a worker."""
    config = ServerConfig.model_validate({"name": "stdio", "retry": QUICKLY, **entry})
    context = SessionContext()
    connection = ServerConnection(config, build_masker(), context)
    try:
        yield connection
    finally:
        await connection.close()
        context.child_watch.close()


def test_the_tasks_of_the_session_loop_stay_flat(directory: Path) -> None:
    ledger = Ledger(directory / "tasks")

    async def run() -> None:
        this_process = psutil.Process()
        alone = asyncio.all_tasks()
        counts: list[int] = []
        async with connection_to(witness(ledger)) as connection:
            async with asyncio.timeout(60):
                for _ in range(CYCLES // 2):
                    session = await connection.connected()
                    invocation, _ = invocation_of(connection, session.tools["look"], "k")
                    assert isinstance(await invocation.run(), Answer)
                    await until(lambda: not counts or len(asyncio.all_tasks()) <= counts[0])
                    counts.append(len(asyncio.all_tasks()))
                    kill_server(this_process, ledger.path)
        assert asyncio.all_tasks() == alone

    asyncio.run(run())


def test_a_call_whose_deadline_passed_in_connecting_is_not_sent(directory: Path) -> None:
    ledger = Ledger(directory / "late")

    async def run() -> None:
        async with connection_to(witness(ledger)) as connection:
            tool = (await connection.connected()).tools["add"]
            invocation, call = invocation_of(connection, tool, "k", within_s=0)
            with pytest.raises(CallError, match="did not run") as caught:
                await invocation.run()
            assert caught.value.outcome is Outcome.UNAVAILABLE
            assert (call.attempts, call.may_have_run) == (0, False)

    asyncio.run(run())
    assert ledger.runs() == {}


def test_a_call_that_was_given_back_at_stop_is_not_sent(directory: Path) -> None:
    ledger = Ledger(directory / "closed")

    async def run() -> None:
        async with connection_to(witness(ledger)) as connection:
            tool = (await connection.connected()).tools["add"]
            invocation, call = invocation_of(connection, tool, "k")
            call.is_closed = True  # the worker has given the call back to its queue
            with pytest.raises(CallError):
                await invocation.run()
            assert not ledger.runs()
            other, _ = invocation_of(connection, tool, "other")
            assert isinstance(await other.run(), Answer)
            assert ledger.runs() == {"other": 1}

    asyncio.run(run())


def test_a_lost_call_that_cannot_be_sent_again_may_have_run(directory: Path) -> None:
    ledger = Ledger(directory / "once")
    started = witness(ledger)
    # It starts once, and never again.
    script = 'test -e "$0" && echo "the licence is used up" >&2 && exit 3; exec "$@"'
    entry = {"command": "sh", "args": ["-c", script, str(ledger.path), started["command"], *started["args"]]}

    async def run() -> None:
        async with connection_to({**entry, "timeouts": {"recreate_s": 0.1}}) as connection:
            tool = (await connection.connected()).tools["look"]
            invocation, _ = invocation_of(connection, tool, "held")
            running = asyncio.create_task(invocation.run())
            await until(lambda: ledger.runs())
            kill_server(psutil.Process(), ledger.path)
            with pytest.raises(CallError, match="The tool may have run") as caught:
                await running
            assert caught.value.code is ErrorCode.SESSION_LOST
            assert "did not run" not in caught.value.text
            assert "the licence is used up" in caught.value.text

    asyncio.run(run())


class Sending:
    """The operation of these calls, without what a whole worker adds."""

    name = "tool_call"

    async def prepare(self, call: RunningCall) -> None: ...

    async def send(self, call: RunningCall, session: Session, timeout_s: float) -> Any:
        return await session.call_tool(call.tool, call.arguments, timeout_s)

    async def build_result(self, call: RunningCall, found: Any) -> ToolResult:
        assert not found.is_error
        return ToolResult(call_id="", name=call.tool, content="")


def invocation_of(
    connection: ServerConnection, tool: ToolDefinition, key: str, within_s: float = 20.0
) -> tuple[Invocation, RunningCall]:
    async def run_blocking(function: Any, *args: Any) -> Any:
        raise NotImplementedError

    call = RunningCall(
        id=key,
        operation="tool_call",
        server=tool.server,
        tool=tool.tool,
        info=CallInfo(),
        queue="",
        delivery_count=1,
        raw_arguments=None,
        run_blocking=run_blocking,
        arguments={"key": key},
        definition=tool,
        deadline=time.monotonic() + within_s,
        connection=connection,
        delivery=None,
        record=CallRecord(NoRecorder(), key, CallMessage([tool.server, tool.tool], {})),
        may_replay=may_replay(tool, connection.server),
    )
    return Invocation(NO_CONTEXT, call, Sending(), ()), call


NO_CONTEXT = cast("WorkerContext", None)
"""These servers answer with no task, and ask nothing."""


class NoRecorder:
    def build_write(self, record: CallRecord, result: ToolResult, size_bytes: int | None) -> AuditWrite:
        raise NotImplementedError

    def time_of(self, monotonic_s: float) -> float:
        raise NotImplementedError


def servers_of(parent: psutil.Process, path: Path) -> list[psutil.Process]:
    return [child for child in parent.children(recursive=True) if str(path) in read_command(child)]


def kill_server(parent: psutil.Process, path: Path) -> None:
    for child in servers_of(parent, path):
        child.kill()

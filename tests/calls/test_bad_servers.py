"""stdio servers that misbehave: every call to them ends in time, and no other server's calls notice."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tests.calls.neighbour import BAD_TIMEOUTS, HEALTHY, call_beside_neighbour, greet_neighbour
from tests.conftest import StartWorker
from tests.processes import Worker, environment_of, is_alive, wait_until
from tests.servers import misbehaving_stdio

_SCRIPT = Path(misbehaving_stdio.__file__)


def _server(kind: str, **timeouts: float) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(_SCRIPT), kind], "timeouts": BAD_TIMEOUTS | timeouts}


SERVERS: dict[str, Any] = {
    **HEALTHY,
    **{kind: _server(kind) for kind in misbehaving_stdio.KINDS},
    "pages-for-ever": _server("pages-for-ever", connect_s=5),  # 200 of them, while all others are started
    "no-such-command": {"command": "/no/such/command", "timeouts": BAD_TIMEOUTS},
    "no-such-directory": {**_server("server"), "cwd": "/no/such/directory"},
}


@dataclass(frozen=True)
class Ending:
    """How a call of `act` ends on a server of some kind.

    Attributes:
        words: Stand in the answer: what happened, or the server's last words.
        then: Outcome of a call of `echo` right afterwards.
    """

    kind: str
    outcome: Outcome
    code: ErrorCode | None
    words: tuple[str, ...] = ()
    then: Outcome | None = None


UNAVAILABLE = (Outcome.UNAVAILABLE, ErrorCode.SERVER_UNAVAILABLE)
LOST = (Outcome.UNKNOWN, ErrorCode.SESSION_LOST)
TIMEOUT = (Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)
TOO_LARGE = (Outcome.TOOL_ERROR, ErrorCode.RESULT_TOO_LARGE)
OK = Outcome.OK

ENDINGS = [
    Ending("no-such-command", *UNAVAILABLE, ("/no/such/command",)),
    Ending("no-such-directory", *UNAVAILABLE, ("/no/such/directory",)),
    Ending("exits-at-once", *UNAVAILABLE, ("exited with code 3", "the licence has expired")),
    Ending("exits-in-handshake", *UNAVAILABLE, ("exited with code 4", "no such protocol")),
    Ending("exits-after-handshake", *UNAVAILABLE, ("exited with code 5", "the tools are not at home")),
    Ending("hangs-in-handshake", *UNAVAILABLE, ("3 s", "waiting for the database")),
    Ending("floods-stderr", *UNAVAILABLE, ("flood",)),
    Ending("floods-stderr-beside-its-answers", OK, None, ("done",), then=OK),
    Ending("floods-stdout", *UNAVAILABLE),
    Ending("floods-stdout-without-line-end", *UNAVAILABLE),
    Ending("prints-garbage", OK, None, ("do\ufffdne",), then=OK),
    Ending("answers-with-wrong-id", *TIMEOUT, ("no answer",), then=OK),
    Ending("answers-twice", OK, None, ("first",), then=OK),
    Ending("answers-too-much-id-first", *TOO_LARGE, ("16777216",), then=OK),
    Ending("answers-too-much-id-last", *TOO_LARGE, ("16777216",), then=OK),
    Ending("answers-too-much-id-between", *TIMEOUT, then=OK),
    Ending("answers-no-result", Outcome.TOOL_ERROR, ErrorCode.INVALID_RESULT, ("content",), then=OK),
    Ending("lists-too-much", *UNAVAILABLE, ("16777216",)),
    Ending("pages-for-ever", *UNAVAILABLE, ("tools/list", "200 pages")),
    Ending("pages-in-circles", *UNAVAILABLE, ("tools/list",)),
    Ending("dies-in-mid-call", *LOST, ("SIGKILL", "index out of range"), then=OK),
    Ending("closes-stdout", *LOST, ("closed its stdout", "nobody listens to me"), then=OK),
    Ending("ignores-termination", OK, None, ("done",), then=OK),
    Ending("starts-grandchild", OK, None, ("done",), then=OK),
]


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker) -> Worker:
    return start_worker(SERVERS)


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    tools = ToolExecutor(timeout_s=20)
    tools.execute(ToolCall(id="n", name="neighbour.echo", arguments={"text": "connect"}))
    # All of them are started at once, a few at a time, and the last has to wait for that.
    tools.list_tools()
    return tools


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.kind)
def test_a_call_of_a_bad_server_ends_in_time_and_its_neighbour_does_not_notice(
    tools: ToolExecutor, ending: Ending
) -> None:
    result = call_beside_neighbour(tools, ToolCall(id="c", name=f"{ending.kind}.act", arguments={}))
    assert (result.outcome, result.error_code) == (ending.outcome, ending.code), result.content
    assert [word for word in ending.words if word not in result.content] == [], result.content
    if ending.outcome is not OK:
        assert ending.kind in result.content
    if ending.then is not None:
        after = tools.execute(ToolCall(id="d", name=f"{ending.kind}.echo", arguments={"text": "again"}))
        assert after.outcome is ending.then, after.content


def test_a_server_that_closed_its_stdin_is_lost_with_the_next_call_and_replaced_for_the_one_after(
    worker: Worker, tools: ToolExecutor
) -> None:
    call_beside_neighbour(tools, ToolCall(id="c", name="closes-stdin.act", arguments={}))
    worker.wait_for_log("I have heard enough")
    echo = ToolCall(id="d", name="closes-stdin.echo", arguments={"text": "again"})
    lost = call_beside_neighbour(tools, echo)
    assert (lost.outcome, lost.error_code) == LOST, lost.content
    assert "closed its stdin" in lost.content
    assert tools.execute(echo).content == "again"


def test_arguments_that_the_server_never_reads_end_in_time(tools: ToolExecutor) -> None:
    result = call_beside_neighbour(tools, ToolCall(id="c", name="never-reads.act", arguments={"text": "x" * 2_000_000}))
    assert (result.outcome, result.error_code) == TIMEOUT, result.content


def test_a_call_waits_no_longer_for_a_hung_server_than_its_agent_does(tools: ToolExecutor) -> None:
    hasty = ToolExecutor(timeout_s=1.5)
    result = hasty.execute(ToolCall(id="c", name="hangs-in-handshake.act", arguments={}))
    assert (result.outcome, result.error_code) == UNAVAILABLE, result.content
    assert result.duration_s < 1.5


def test_many_calls_of_one_bad_server_end_together(tools: ToolExecutor) -> None:
    calls = [ToolCall(id=str(number), name="exits-at-once.act", arguments={}) for number in range(20)]
    results = tools.execute_many(calls)
    assert {result.error_code for result in results} == {ErrorCode.SERVER_UNAVAILABLE}
    greet_neighbour(tools)


def test_the_tools_of_a_good_server_are_listed_beside_the_failures_of_the_bad(tools: ToolExecutor) -> None:
    some = ToolExecutor(["neighbour", "exits-at-once", "pages-in-circles"], timeout_s=20)
    assert {tool.server for tool in some.list_tools()} == {"neighbour"}
    failed = some.failed_servers()
    assert failed.keys() == {"exits-at-once", "pages-in-circles"}
    assert "the licence has expired" in failed["exits-at-once"]


def test_a_worker_ends_in_time_and_leaves_no_process_behind_whatever_its_servers_do(
    start_worker: StartWorker, tools: ToolExecutor
) -> None:
    kinds = [
        "ignores-termination",
        "starts-grandchild",
        "starts-detached-grandchild",
        "floods-stderr-beside-its-answers",
        "never-reads",
    ]
    worker = start_worker({f"own-{kind}": _server(kind) for kind in kinds})
    with environment_of(worker):
        assert ToolExecutor(timeout_s=20).failed_servers() == {}
    grandchildren = wait_until(lambda: len(found := _grandchildren_of(worker)) == 2 and found, "the grandchildren run")
    worker.stop(timeout_s=20)
    assert [each for each in grandchildren if is_alive(each)] == []


def test_a_worker_that_ends_while_it_replaces_a_server_leaves_neither_process_behind(start_worker: StartWorker) -> None:
    worker = start_worker({"lonely": _server("closes-stdin")})
    with environment_of(worker):
        tools = ToolExecutor(timeout_s=20)
    tools.execute(ToolCall(id="c", name="lonely.act", arguments={}))
    worker.wait_for_log("I have heard enough")
    echo = ToolCall(id="d", name="lonely.echo", arguments={"text": "again"})
    assert [tools.execute(echo).outcome for _ in range(2)] == [Outcome.UNKNOWN, OK]
    worker.stop(timeout_s=20)


def _grandchildren_of(worker: Worker) -> list[psutil.Process]:
    return worker.find_children(misbehaving_stdio.GRANDCHILD)

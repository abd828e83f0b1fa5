"""SSE servers that misbehave: every call to them ends in time, and no other server's calls notice."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tests.calls.neighbour import BAD_TIMEOUTS, HEALTHY, call_beside_neighbour
from tests.conftest import StartWorker
from tests.processes import Worker, environment_of, free_port
from tests.servers import listening, misbehaving_sse

UNAVAILABLE = (Outcome.UNAVAILABLE, ErrorCode.SERVER_UNAVAILABLE)
REFUSED = (Outcome.UNAVAILABLE, ErrorCode.SERVER_REFUSED)
LOST = (Outcome.UNKNOWN, ErrorCode.SESSION_LOST)
TIMEOUT = (Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)
SERVER_ERROR = (Outcome.TOOL_ERROR, ErrorCode.SERVER_ERROR)
TOO_LARGE = (Outcome.TOOL_ERROR, ErrorCode.RESULT_TOO_LARGE)
OK = (Outcome.OK, None)


@dataclass(frozen=True)
class Ending:
    """How a call of `act` ends: on a server that misbehaves from the first request, or only in this call.

    Attributes:
        words: Stand in the answer: what happened, or what the server said.
        sessions: How often the worker had connected by the end of the next call, one of `echo`, which is always fine.
    """

    moment: str
    kind: str
    outcome: Outcome
    code: ErrorCode | None
    words: tuple[str, ...] = ()
    sessions: int = 1

    @property
    def server(self) -> str:
        return f"{self.moment}-{self.kind}"


ENDINGS = [
    Ending("connect", "status-401", *REFUSED, ("401", "who are you?")),
    Ending("connect", "status-403", *REFUSED, ("403", "not for you")),
    Ending("connect", "status-404", *REFUSED, ("404", "no such thing")),
    Ending("connect", "status-405", *REFUSED, ("405", "check the path, or use the transport http")),
    Ending("connect", "status-503", *UNAVAILABLE, ("503", "too busy")),
    Ending("connect", "html", *REFUSED, ("text/html", "text/event-stream")),
    Ending("connect", "redirects", *REFUSED, ("127.0.0.2", "not followed")),
    Ending("connect", "names-no-endpoint", *UNAVAILABLE, ("3 s",)),
    Ending("connect", "ends-at-once", *UNAVAILABLE, ("before it named an endpoint",)),
    Ending("connect", "names-another-origin", *REFUSED, ("another origin", "127.0.0.2")),
    Ending("connect", "names-nonsense", *REFUSED, ("not a valid address",)),
    Ending("call", "status-401", *REFUSED, ("401", "who are you?")),
    Ending("call", "status-404", *UNAVAILABLE, ("404", "session not found"), sessions=3),
    Ending("call", "status-429", *UNAVAILABLE, ("429", "too often")),
    Ending("call", "status-500", *LOST, ("500", "the database is down")),
    Ending("call", "status-503", *UNAVAILABLE, ("503", "too busy")),
    Ending("call", "error-400", *SERVER_ERROR, ("no such colour",)),
    Ending("call", "redirects", *OK),
    Ending("call", "redirects-elsewhere", *REFUSED, ("307", "127.0.0.2")),
    Ending("call", "cuts-post", *LOST),
    Ending("call", "holds-post", *OK),
    Ending("call", "answers-nothing", *TIMEOUT),
    Ending("call", "cuts-stream", *LOST, ("closed its event stream",), sessions=2),
    Ending("call", "cuts-event", *LOST, ("closed its event stream",), sessions=2),
    Ending("call", "cuts-idle-stream", *OK, sessions=2),
    Ending("call", "too-much-id-first", *TOO_LARGE, (str(misbehaving_sse.LIMIT_BYTES),)),
    Ending("call", "too-much-id-last", *TOO_LARGE, (str(misbehaving_sse.LIMIT_BYTES),)),
    Ending("call", "too-much-in-lines", *TOO_LARGE, (str(misbehaving_sse.LIMIT_BYTES),)),
    Ending("call", "garbage", *OK, ("st\ufffdill here",)),
    Ending("call", "splits", *OK),
]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where all the bad servers listen."""
    port = free_port()
    with listening([sys.executable, misbehaving_sse.__file__, str(port)], port, tmp_path_factory.mktemp("zoo")):
        yield port


def _server(port: int, path: str) -> dict[str, Any]:
    return {
        "type": "sse",
        "url": f"http://127.0.0.1:{port}/{path}/sse",
        "timeouts": BAD_TIMEOUTS,
        "max_message_bytes": misbehaving_sse.LIMIT_BYTES,
    }


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, port: int) -> Worker:
    zoo = {ending.server: _server(port, f"{ending.moment}/{ending.kind}") for ending in ENDINGS}
    others = {"nobody-listens": _server(free_port(), "call/echo"), "one-at-a-time": _server(port, "call/waits-in-post")}
    return start_worker({**HEALTHY, **zoo, **others})


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    tools = ToolExecutor(timeout_s=20)
    tools.execute(ToolCall(id="n", name="neighbour.echo", arguments={"text": "connect"}))
    return tools


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.server)
def test_a_call_of_a_bad_server_ends_in_time_and_its_neighbour_does_not_notice(
    worker: Worker, tools: ToolExecutor, ending: Ending
) -> None:
    result = call_beside_neighbour(tools, ToolCall(id="c", name=f"{ending.server}.act", arguments={}))
    assert (result.outcome, result.error_code) == (ending.outcome, ending.code), result.content
    words = ending.words if ending.code is None else (ending.server, *ending.words)
    assert [word for word in words if word not in result.content] == [], result.content
    if ending.moment == "call":
        after = tools.execute(ToolCall(id="d", name=f"{ending.server}.echo", arguments={}))
        assert (after.outcome, after.content) == (Outcome.OK, "still here")
        assert worker.log.count(f"connected to MCP server {ending.server}:") == ending.sessions


def test_a_call_of_a_server_that_nobody_runs_did_not_run(tools: ToolExecutor) -> None:
    result = call_beside_neighbour(tools, ToolCall(id="c", name="nobody-listens.act", arguments={}))
    assert (result.outcome, result.error_code) == UNAVAILABLE, result.content
    assert "did not run" in result.content


def test_a_post_that_is_answered_late_does_not_delay_the_next_call(tools: ToolExecutor) -> None:
    slow = tools.submit(ToolCall(id="s", name="one-at-a-time.act", arguments={}))
    next_one = tools.execute(ToolCall(id="n", name="one-at-a-time.echo", arguments={}))
    assert [next_one.outcome, slow.result().outcome] == [Outcome.OK, Outcome.OK]


def test_a_worker_ends_in_time_while_its_event_streams_are_open(start_worker: StartWorker, port: int) -> None:
    worker = start_worker({f"own-{kind}": _server(port, f"call/{kind}") for kind in ("echo", "holds-post")})
    with environment_of(worker):
        tools = ToolExecutor(timeout_s=20)
        assert tools.list_tools().failed_servers == {}
    worker.stop(timeout_s=20)
    assert "Traceback" not in worker.log

"""Streamable HTTP servers that misbehave: every call to them ends in time, and no other server's calls notice."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tests.calls.neighbour import BAD_TIMEOUTS, HEALTHY, call_beside_neighbour
from tests.conftest import StartWorker
from tests.processes import Worker, environment_of, free_port
from tests.servers import listening, misbehaving_http

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
    """

    moment: str
    kind: str
    outcome: Outcome
    code: ErrorCode | None
    words: tuple[str, ...] = ()

    @property
    def server(self) -> str:
        return f"{self.moment}-{self.kind}"


ENDINGS = [
    Ending("connect", "status-401", *REFUSED, ("401", "who are you?")),
    Ending("connect", "status-403", *REFUSED, ("403", "not for you")),
    Ending("connect", "status-404", *REFUSED, ("404", "no such page")),
    Ending("connect", "status-500", *UNAVAILABLE, ("500", "the database is down")),
    Ending("connect", "status-503", *UNAVAILABLE, ("503", "too busy")),
    Ending("connect", "redirects", *UNAVAILABLE, ("127.0.0.2",)),
    Ending("connect", "redirects-within", *OK),
    Ending("connect", "hangs", *UNAVAILABLE, ("3 s",)),
    Ending("connect", "hangs-in-stream", *UNAVAILABLE, ("3 s",)),
    Ending("connect", "cuts-json", *UNAVAILABLE),
    Ending("connect", "cuts-stream", *UNAVAILABLE),
    Ending("connect", "cuts-at-once", *UNAVAILABLE),
    Ending("connect", "no-json", *UNAVAILABLE, ("JSON",)),
    Ending("connect", "wrong-json", *UNAVAILABLE, ("JSON",)),
    Ending("connect", "empty", *UNAVAILABLE, ("JSON",)),
    Ending("connect", "html", *UNAVAILABLE, ("text/html",)),
    Ending("connect", "too-much-json", *UNAVAILABLE, ("16777216",)),
    Ending("connect", "too-much-html", *UNAVAILABLE, ("500",)),
    Ending("connect", "too-much-stream", *UNAVAILABLE),
    Ending("connect", "accepts", *UNAVAILABLE, ("202",)),
    Ending("connect", "wrong-id", *UNAVAILABLE, ("3 s",)),
    Ending("call", "status-401", *REFUSED, ("401", "who are you?")),
    Ending("call", "status-403", *REFUSED, ("403", "not for you")),
    Ending("call", "status-404", *REFUSED, ("404", "no such page")),
    Ending("call", "status-500", *LOST, ("500", "the database is down")),
    Ending("call", "status-503", *UNAVAILABLE, ("503", "too busy")),
    Ending("call", "status-524", *LOST, ("524",)),
    Ending("call", "gateway-401", *REFUSED, ("401", "no key")),
    Ending("call", "odd-header", *OK),
    Ending("call", "redirects", *SERVER_ERROR, ("127.0.0.2",)),
    Ending("call", "redirects-within", *OK),
    Ending("call", "hangs", *TIMEOUT),
    Ending("call", "hangs-in-stream", *TIMEOUT),
    Ending("call", "floods-in-stream", *TIMEOUT),
    Ending("call", "cuts-json", *LOST),
    Ending("call", "cuts-stream", *LOST),
    Ending("call", "cuts-at-once", *LOST),
    Ending("call", "no-json", *SERVER_ERROR, ("JSON",)),
    Ending("call", "wrong-json", *SERVER_ERROR, ("JSON",)),
    Ending("call", "empty", *SERVER_ERROR, ("JSON",)),
    Ending("call", "html", *SERVER_ERROR, ("text/html",)),
    Ending("call", "too-much-json", *TOO_LARGE, ("16777216",)),
    Ending("call", "too-much-html", *LOST, ("500",)),
    Ending("call", "too-much-stream", *TOO_LARGE, ("16777216",)),
    Ending("call", "accepts", *SERVER_ERROR, ("202",)),
    Ending("call", "wrong-id", *TIMEOUT),
]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where all the bad servers listen."""
    port = free_port()
    with listening([sys.executable, misbehaving_http.__file__, str(port)], port, tmp_path_factory.mktemp("zoo")):
        yield port


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, port: int) -> Worker:
    def server(path: str) -> dict[str, Any]:
        # While all of them are tried at once, 16 MB may take longer than whoever hangs is waited for.
        patience = {"connect_s": 15} if "connect/too-much" in path else {}
        return {"url": f"http://127.0.0.1:{port}/{path}", "timeouts": BAD_TIMEOUTS | patience}

    nobody = {"url": f"http://127.0.0.1:{free_port()}/mcp", "timeouts": BAD_TIMEOUTS}
    zoo = {ending.server: server(f"{ending.moment}/{ending.kind}") for ending in ENDINGS}
    return start_worker(
        {**HEALTHY, **zoo, "nobody-listens": nobody, "forgets-sessions": server("call/forgets-sessions")}
    )


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    tools = ToolExecutor(timeout_s=20)
    tools.execute(ToolCall(id="n", name="neighbour.echo", arguments={"text": "connect"}))
    return tools


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.server)
def test_a_call_of_a_bad_server_ends_in_time_and_its_neighbour_does_not_notice(
    tools: ToolExecutor, ending: Ending
) -> None:
    result = call_beside_neighbour(tools, ToolCall(id="c", name=f"{ending.server}.act", arguments={}))
    assert (result.outcome, result.error_code) == (ending.outcome, ending.code), result.content
    words = ending.words if ending.code is None else (ending.server, *ending.words)
    assert [word for word in words if word not in result.content] == [], result.content
    if ending.moment == "call":
        after = tools.execute(ToolCall(id="d", name=f"{ending.server}.echo", arguments={}))
        assert (after.outcome, after.content) == (Outcome.OK, "still here")


def test_a_call_of_a_server_that_nobody_runs_did_not_run(tools: ToolExecutor) -> None:
    result = call_beside_neighbour(tools, ToolCall(id="c", name="nobody-listens.act", arguments={}))
    assert (result.outcome, result.error_code) == UNAVAILABLE, result.content
    assert "nobody-listens" in result.content
    assert "did not run" in result.content


def test_the_call_after_the_server_forgot_its_session_gets_a_new_one(tools: ToolExecutor) -> None:
    result = call_beside_neighbour(tools, ToolCall(id="c", name="forgets-sessions.act", arguments={}))
    assert (result.outcome, result.error_code) == UNAVAILABLE, result.content
    after = tools.execute(ToolCall(id="d", name="forgets-sessions.echo", arguments={}))
    assert (after.outcome, after.content) == (Outcome.OK, "still here")


def test_a_worker_ends_in_time_when_a_server_does_not_let_its_session_go(start_worker: StartWorker, port: int) -> None:
    worker = start_worker({"clinging": {"url": f"http://127.0.0.1:{port}/goodbye/clings", "timeouts": BAD_TIMEOUTS}})
    with environment_of(worker):
        assert ToolExecutor(timeout_s=20).list_tools().failed_servers == {}
    worker.stop(timeout_s=20)


def test_many_calls_of_bad_servers_at_once_end_together(tools: ToolExecutor) -> None:
    servers = [ending.server for ending in ENDINGS if ending.moment == "call" and "hangs" not in ending.kind]
    calls = [ToolCall(id=server, name=f"{server}.act", arguments={}) for server in servers if "wrong-id" not in server]
    results = tools.execute_many(calls)
    expected = {ending.server: ending.outcome for ending in ENDINGS}
    assert {result.call_id: result.outcome for result in results} == {call.id: expected[call.id] for call in calls}

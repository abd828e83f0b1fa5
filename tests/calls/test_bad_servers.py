"""Servers that misbehave, over each transport: every call ends in time, and no other server's calls notice."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, PendingCall, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tests.calls.neighbour import (
    BAD_TIMEOUTS,
    HEALTHY,
    call_beside_neighbour,
    call_neighbour,
    wait_beside_neighbour,
)
from tests.conftest import StartWorker
from tests.processes import Worker, environment_of, free_port, is_alive, listening, wait_until
from tests.servers import misbehaving_stdio, misbehaving_web

Transport = Literal["stdio", "http", "sse"]
STDIO: tuple[Transport, ...] = ("stdio",)
HTTP: tuple[Transport, ...] = ("http",)
SSE: tuple[Transport, ...] = ("sse",)
WEB: tuple[Transport, ...] = ("http", "sse")
ALL: tuple[Transport, ...] = ("stdio", "http", "sse")
NEVER_ANSWER = ("hangs", "hangs-in-stream", "wrong-id", "floods-stderr", "floods-stdout")
LARGE_S = 30
"""A worker reads more than 16 MB of an answer in this time, also on a busy machine."""
LIMIT_BYTES: dict[Transport, int] = {"stdio": 16777216, "http": 16777216, "sse": misbehaving_web.SSE_LIMIT_BYTES}

Ending = tuple[Outcome, ErrorCode | None]
OK: Ending = (Outcome.OK, None)
UNAVAILABLE: Ending = (Outcome.UNAVAILABLE, ErrorCode.SERVER_UNAVAILABLE)
MISCONFIGURED: Ending = (Outcome.UNAVAILABLE, ErrorCode.SERVER_MISCONFIGURED)
REFUSED: Ending = (Outcome.UNAVAILABLE, ErrorCode.SERVER_REFUSED)
LOST: Ending = (Outcome.UNKNOWN, ErrorCode.SESSION_LOST)
TIMEOUT: Ending = (Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)
SERVER_ERROR: Ending = (Outcome.TOOL_ERROR, ErrorCode.SERVER_ERROR)
TOO_LARGE: Ending = (Outcome.TOOL_ERROR, ErrorCode.RESULT_TOO_LARGE)
INVALID: Ending = (Outcome.TOOL_ERROR, ErrorCode.INVALID_RESULT)


@dataclass(frozen=True)
class Fault:
    """What a server does wrong, and how a call of its tool `act` ends because of that.

    Attributes:
        moment: Whether it misbehaves from the first request ("connect"), or only in the call.
        words: In the answer: what happened, or what the server said. "LIMIT" is the limit of the transport in bytes.
        sessions: How often the worker had connected by the end of the next call, one of `echo`, which is always fine.
        asks_to_wait: For longer than a call may take (Retry-After): until then, calls are rejected and not sent.
    """

    moment: Literal["connect", "call"]
    kind: str
    transports: tuple[Transport, ...]
    ending: Ending
    words: tuple[str, ...] = ()
    sessions: int = 1
    asks_to_wait: bool = False

    @property
    def server(self) -> str:
        return f"{self.moment}-{self.kind}"


FAULTS = [
    # It cannot be started or reached.
    Fault("connect", "no-such-command", STDIO, MISCONFIGURED, ("/no/such/command",)),
    Fault("connect", "no-such-directory", STDIO, MISCONFIGURED, ("/no/such/directory",)),
    Fault("connect", "nobody-listens", WEB, UNAVAILABLE, ("did not run",)),
    # It ends while the worker connects.
    Fault("connect", "exits-at-once", STDIO, UNAVAILABLE, ("exited with code 3", "the licence has expired")),
    Fault("connect", "exits-in-handshake", STDIO, UNAVAILABLE, ("exited with code 4", "no such protocol")),
    Fault("connect", "exits-after-handshake", STDIO, UNAVAILABLE, ("exited with code 5", "the tools are not at home")),
    Fault("connect", "cuts-at-once", HTTP, UNAVAILABLE),
    Fault("connect", "cuts-json", HTTP, UNAVAILABLE),
    Fault("connect", "cuts-stream", HTTP, UNAVAILABLE),
    Fault("connect", "cuts-stream", SSE, UNAVAILABLE, ("before it named an endpoint",)),
    # It does not answer.
    Fault("connect", "hangs", STDIO, UNAVAILABLE, ("waiting for the database",)),
    Fault("connect", "hangs", WEB, UNAVAILABLE, ("3 s",)),
    Fault("connect", "hangs-in-stream", HTTP, UNAVAILABLE, ("3 s",)),
    Fault("connect", "wrong-id", HTTP, UNAVAILABLE, ("3 s",)),
    Fault("call", "hangs", HTTP, TIMEOUT),
    Fault("call", "hangs-in-stream", HTTP, TIMEOUT),
    Fault("call", "answers-nothing", SSE, TIMEOUT),
    Fault("call", "wrong-id", STDIO, TIMEOUT, ("no answer",)),
    Fault("call", "wrong-id", WEB, TIMEOUT),
    Fault("call", "holds-post", SSE, OK),
    # It refuses.
    Fault("connect", "status-401", WEB, REFUSED, ("401", "who are you?")),
    Fault("connect", "status-403", WEB, REFUSED, ("403", "not for you")),
    Fault("connect", "status-404", WEB, REFUSED, ("404", "no such page")),
    Fault("connect", "status-405", SSE, REFUSED, ("405", "check the path, or use the transport http")),
    Fault("connect", "status-500", HTTP, UNAVAILABLE, ("500", "the database is down")),
    Fault("connect", "status-503", WEB, UNAVAILABLE, ("503", "too busy")),
    Fault("connect", "accepts", HTTP, UNAVAILABLE, ("202",)),
    Fault("call", "status-401", WEB, REFUSED, ("401", "who are you?")),
    Fault("call", "status-403", HTTP, REFUSED, ("403", "not for you")),
    Fault("call", "status-404", HTTP, REFUSED, ("404", "no such page")),
    Fault("call", "status-404", SSE, UNAVAILABLE, ("404", "no such page"), sessions=3),
    Fault("call", "status-429", SSE, UNAVAILABLE, ("429", "too often")),
    Fault("call", "status-500", WEB, LOST, ("500", "the database is down")),
    Fault("call", "status-503", WEB, UNAVAILABLE, ("503", "too busy"), asks_to_wait=True),
    Fault("call", "status-524", HTTP, LOST, ("524",)),
    Fault("call", "gateway-401", HTTP, REFUSED, ("401", "no key")),
    Fault("call", "error-400", SSE, SERVER_ERROR, ("no such colour",)),
    Fault("call", "accepts", HTTP, SERVER_ERROR, ("202",)),
    Fault("call", "forgets-sessions", HTTP, UNAVAILABLE, sessions=3),
    # It leads elsewhere.
    Fault("connect", "redirects", HTTP, UNAVAILABLE, ("127.0.0.2",)),
    Fault("connect", "redirects", SSE, REFUSED, ("127.0.0.2", "not followed")),
    Fault("connect", "redirects-within", HTTP, OK),
    Fault("connect", "names-another-origin", SSE, REFUSED, ("another origin", "127.0.0.2")),
    Fault("connect", "names-nonsense", SSE, REFUSED, ("not a valid address",)),
    Fault("call", "redirects", HTTP, SERVER_ERROR, ("127.0.0.2",)),
    Fault("call", "redirects", SSE, REFUSED, ("307", "127.0.0.2")),
    Fault("call", "redirects-within", WEB, OK),
    # What it says is no MCP.
    Fault("connect", "no-json", HTTP, UNAVAILABLE, ("JSON",)),
    Fault("connect", "wrong-json", HTTP, UNAVAILABLE, ("JSON",)),
    Fault("connect", "empty", HTTP, UNAVAILABLE, ("JSON",)),
    Fault("connect", "html", HTTP, UNAVAILABLE, ("text/html",)),
    Fault("connect", "html", SSE, REFUSED, ("text/html", "text/event-stream")),
    Fault("call", "no-json", HTTP, SERVER_ERROR, ("JSON",)),
    Fault("call", "wrong-json", HTTP, SERVER_ERROR, ("JSON",)),
    Fault("call", "empty", HTTP, SERVER_ERROR, ("JSON",)),
    Fault("call", "html", HTTP, SERVER_ERROR, ("text/html",)),
    Fault("call", "answers-no-result", STDIO, INVALID, ("content",)),
    Fault("call", "promises-a-pattern", STDIO, OK, ("aaa!",)),
    Fault("call", "garbage", ("stdio", "sse"), OK, ("st\ufffdill here",)),
    Fault("call", "odd-header", HTTP, OK),
    Fault("call", "splits", SSE, OK),
    Fault("call", "answers-twice", STDIO, OK, ("first",)),
    # It says too much.
    Fault("connect", "floods-stderr", STDIO, UNAVAILABLE, ("flood",)),
    Fault("connect", "floods-stdout", STDIO, UNAVAILABLE),
    Fault("connect", "floods-stdout-without-line-end", STDIO, UNAVAILABLE),
    Fault("connect", "lists-too-much", STDIO, UNAVAILABLE, ("LIMIT",)),
    Fault("connect", "lists-too-many", STDIO, UNAVAILABLE, ("5000 tools",)),
    Fault("connect", "lists-long-schemas", STDIO, UNAVAILABLE, ("more than 4194304 characters",)),
    Fault("connect", "pages-for-ever", STDIO, UNAVAILABLE, ("tools/list", "200 pages")),
    Fault("connect", "pages-in-circles", STDIO, UNAVAILABLE, ("tools/list",)),
    Fault("connect", "too-much-json", HTTP, UNAVAILABLE, ("LIMIT",)),
    Fault("connect", "too-much-html", HTTP, UNAVAILABLE, ("500",)),
    Fault("connect", "too-much-stream", HTTP, UNAVAILABLE),
    Fault("call", "floods-stderr-beside-its-answers", STDIO, OK, ("still here",)),
    Fault("call", "floods-in-stream", HTTP, TIMEOUT),
    Fault("call", "says-too-many-parts", STDIO, OK, ("only the first 1000 of 30000 parts",)),
    Fault("call", "says-too-many-values", STDIO, TOO_LARGE, ("more than 100000 values",)),
    Fault("call", "too-much-id-first", ("stdio", "sse"), TOO_LARGE, ("LIMIT",)),
    Fault("call", "too-much-id-last", ("stdio", "sse"), TOO_LARGE, ("LIMIT",)),
    Fault("call", "too-much-id-between", STDIO, TIMEOUT),
    Fault("call", "too-much-in-lines", SSE, TOO_LARGE, ("LIMIT",)),
    Fault("call", "too-much-json", HTTP, TOO_LARGE, ("LIMIT",)),
    Fault("call", "too-much-html", HTTP, LOST, ("500",)),
    Fault("call", "too-much-stream", HTTP, TOO_LARGE, ("LIMIT",)),
    # It is lost in mid-call, or does not want to end.
    Fault("call", "dies-in-mid-call", STDIO, LOST, ("SIGKILL", "index out of range"), sessions=2),
    Fault("call", "closes-stdout", STDIO, LOST, ("closed its stdout", "nobody listens to me"), sessions=2),
    Fault("call", "cuts-at-once", WEB, LOST),
    Fault("call", "cuts-json", HTTP, LOST),
    Fault("call", "cuts-stream", HTTP, LOST),
    Fault("call", "cuts-stream", SSE, LOST, ("closed its event stream",), sessions=2),
    Fault("call", "cuts-event", SSE, LOST, ("closed its event stream",), sessions=2),
    Fault("call", "cuts-idle-stream", SSE, OK, sessions=2),
    Fault("call", "ignores-termination", STDIO, OK, ("still here",)),
    Fault("call", "starts-grandchild", STDIO, OK, ("still here",)),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault" in metafunc.fixturenames:
        metafunc.parametrize("fault", metafunc.cls.faults(), ids=lambda fault: fault.server)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where all the bad servers of the web listen."""
    port = free_port()
    with listening([sys.executable, misbehaving_web.__file__, str(port)], port, tmp_path_factory.mktemp("web")):
        yield port


def entry(port: int, transport: Transport, server: str) -> dict[str, Any]:
    """The configuration of a bad server, by its moment and kind."""
    moment, _, kind = server.partition("-")
    # All are started at once, on a machine that may be busy: only those that never answer are given up soon.
    connect_s = 3 if moment == "connect" and kind in NEVER_ANSWER else 30
    if (transport, kind) == ("stdio", "hangs"):
        connect_s = 8  # it has to start, and say what it waits for, within that
    if kind == "pages-for-ever":
        connect_s = 60  # it answers each of 200 requests
    common: dict[str, Any] = {"timeouts": BAD_TIMEOUTS | {"connect_s": connect_s, "list_s": connect_s}}
    if transport == "stdio":
        command = "/no/such/command" if kind == "no-such-command" else sys.executable
        directory = {"cwd": "/no/such/directory"} if kind == "no-such-directory" else {}
        return {**common, "command": command, "args": [misbehaving_stdio.__file__, kind], **directory}
    if transport == "sse":
        common |= {"type": "sse", "max_message_bytes": LIMIT_BYTES["sse"]}
    port = free_port() if kind == "nobody-listens" else port
    return {**common, "url": f"http://127.0.0.1:{port}/{transport}/{moment}/{kind}"}


class BadServers:
    """What is the same over each transport."""

    transport: Transport
    others: tuple[str, ...] = ()
    """Servers of the transport's own tests."""

    @classmethod
    def faults(cls) -> list[Fault]:
        return [fault for fault in FAULTS if cls.transport in fault.transports]

    @pytest.fixture(scope="class")
    @classmethod
    def worker(cls, start_worker: StartWorker, port: int, redis_url: str) -> Iterator[Worker]:
        """One that has all bad servers of the transport."""
        servers = {fault.server: entry(port, cls.transport, fault.server) for fault in cls.faults()}
        for fault in cls.faults():
            if fault.ending != TIMEOUT:
                servers[fault.server]["timeouts"]["call_s"] = LARGE_S if fault.ending == TOO_LARGE else 10
        others = {server: entry(port, cls.transport, server) for server in cls.others}
        worker = start_worker({**HEALTHY, **servers, **others})
        with environment_of(worker):
            yield worker
        worker.stop()
        with redis.Redis.from_url(redis_url) as client:
            client.delete(keys.PAUSES)  # the servers of the next transport have the same names

    @pytest.fixture(scope="class")
    @classmethod
    def tools(cls, worker: Worker) -> Iterator[ToolExecutor]:
        with ToolExecutor(timeout_s=40) as tools:
            tools.execute(ToolCall(id="n", name="neighbour.echo", arguments={"text": "connect"}))
            if cls.transport == "stdio":
                tools.list_tools()  # they are started a few at a time, and the last has to wait for that
            yield tools

    @pytest.fixture(scope="class")
    @classmethod
    def early(cls, tools: ToolExecutor) -> dict[str, PendingCall]:
        """Calls that time out: all at once, to save time; each test looks at one."""
        servers = [fault.server for fault in cls.faults() if fault.ending == TIMEOUT]
        return {server: tools.submit(ToolCall(id="c", name=f"{server}.act", arguments={})) for server in servers}

    def test_a_call_ends_in_time_and_its_neighbour_is_not_delayed(
        self, worker: Worker, tools: ToolExecutor, early: dict[str, PendingCall], fault: Fault
    ) -> None:
        if pending := early.get(fault.server):
            result = wait_beside_neighbour(tools, pending)
        else:
            within_s = [LARGE_S] if fault.ending == TOO_LARGE else []
            result = call_beside_neighbour(tools, ToolCall(id="c", name=f"{fault.server}.act", arguments={}), *within_s)
        assert (result.outcome, result.error_code) == fault.ending, result.content
        words = [word.replace("LIMIT", str(LIMIT_BYTES[self.transport])) for word in fault.words]
        if fault.ending != OK:
            words.append(fault.server)
        assert [word for word in words if word not in result.content] == [], result.content
        if fault.moment == "call":
            after = tools.execute(ToolCall(id="d", name=f"{fault.server}.echo", arguments={"text": "still here"}))
            if fault.asks_to_wait:
                assert (after.outcome, after.error_code) == (Outcome.REJECTED, ErrorCode.RATE_LIMITED)
            else:
                assert (after.outcome, after.content) == (Outcome.OK, "still here")
            assert worker.log.count(f"connected to MCP server {fault.server}:") == fault.sessions


class WebServers(BadServers):
    def test_many_calls_of_bad_servers_at_once_end_together(self, tools: ToolExecutor) -> None:
        faults = [fault for fault in self.faults() if fault.moment == "call" and fault.ending != TIMEOUT]
        faults = [fault for fault in faults if not fault.asks_to_wait]
        calls = [ToolCall(id=fault.server, name=f"{fault.server}.act", arguments={}) for fault in faults]
        results = tools.execute_many(calls)
        expected = {fault.server: fault.ending[0] for fault in faults}
        assert {result.call_id: result.outcome for result in results} == expected


class TestHttp(WebServers):
    transport = "http"


class TestSse(WebServers):
    transport = "sse"
    others = ("call-waits-in-post",)

    def test_a_post_that_is_answered_late_does_not_delay_the_next(self, tools: ToolExecutor) -> None:
        slow = tools.submit(ToolCall(id="s", name="call-waits-in-post.act", arguments={}))
        next_one = tools.execute(ToolCall(id="n", name="call-waits-in-post.echo", arguments={}))
        assert [next_one.outcome, slow.result().outcome] == [Outcome.OK, Outcome.OK]


class TestStdio(BadServers):
    transport = "stdio"
    others = ("call-closes-stdin", "call-never-reads")

    def test_many_calls_of_one_bad_server_end_together(self, tools: ToolExecutor) -> None:
        calls = [ToolCall(id=str(number), name="connect-exits-at-once.act", arguments={}) for number in range(20)]
        results = tools.execute_many(calls)
        assert {result.error_code for result in results} == {ErrorCode.SERVER_UNAVAILABLE}
        call_neighbour(tools)

    def test_a_server_that_closed_its_stdin_is_replaced(self, worker: Worker, tools: ToolExecutor) -> None:
        call_beside_neighbour(tools, ToolCall(id="c", name="call-closes-stdin.act", arguments={}))
        worker.wait_for_log("I have heard enough")
        echo = ToolCall(id="d", name="call-closes-stdin.echo", arguments={"text": "again"})
        lost = call_beside_neighbour(tools, echo)
        assert (lost.outcome, lost.error_code) == LOST, lost.content
        assert "closed its stdin" in lost.content
        assert tools.execute(echo).content == "again"

    def test_arguments_that_the_server_never_reads_end_in_time(self, tools: ToolExecutor) -> None:
        result = call_beside_neighbour(
            tools, ToolCall(id="c", name="call-never-reads.act", arguments={"text": "x" * 2_000_000})
        )
        assert (result.outcome, result.error_code) == TIMEOUT, result.content

    def test_a_call_of_a_hung_server_ends_at_its_agents_deadline(self, tools: ToolExecutor) -> None:
        hasty = ToolExecutor(timeout_s=6)
        result = hasty.execute(ToolCall(id="c", name="connect-hangs.act", arguments={}))
        assert (result.outcome, result.error_code) == UNAVAILABLE, result.content
        assert result.duration_s < 6

    def test_tools_are_listed_beside_the_failures_of_bad_servers(self, tools: ToolExecutor) -> None:
        some = ToolExecutor(["neighbour", "connect-exits-at-once", "connect-pages-in-circles"], timeout_s=20)
        listed = some.list_tools()
        assert {tool.server for tool in listed} == {"neighbour"}
        failed = listed.failed_servers
        assert failed.keys() == {"connect-exits-at-once", "connect-pages-in-circles"}
        assert "the licence has expired" in failed["connect-exits-at-once"]


def test_a_worker_ends_in_time_and_leaves_no_process_behind(start_worker: StartWorker, port: int) -> None:
    kinds = [
        "ignores-termination",
        "starts-grandchild",
        "starts-detached-grandchild",
        "floods-stderr-beside-its-answers",
        "never-reads",
    ]
    servers = {
        **{f"own-{kind}": entry(port, "stdio", f"call-{kind}") for kind in [*kinds, "closes-stdin"]},
        **{f"own-{kind}": entry(port, "sse", f"call-{kind}") for kind in ("redirects", "holds-post")},
        "own-clings": entry(port, "http", "goodbye-clings"),
    }
    worker = start_worker(servers)
    with environment_of(worker), ToolExecutor(timeout_s=20) as tools:
        assert tools.list_tools().failed_servers == {}
        # One of them is replaced just now.
        tools.execute(ToolCall(id="c", name="own-closes-stdin.act", arguments={}))
        worker.wait_for_log("I have heard enough")
        echo = ToolCall(id="d", name="own-closes-stdin.echo", arguments={"text": "again"})
        assert [tools.execute(echo).outcome for _ in range(2)] == [Outcome.UNKNOWN, Outcome.OK]
    grandchildren = wait_until(lambda: len(found := _grandchildren_of(worker)) == 2 and found, "the grandchildren run")
    worker.stop(timeout_s=20)
    assert [each for each in grandchildren if is_alive(each)] == []
    assert "Traceback" not in worker.log


def _grandchildren_of(worker: Worker) -> list[psutil.Process]:
    return worker.find_children(misbehaving_stdio.GRANDCHILD)

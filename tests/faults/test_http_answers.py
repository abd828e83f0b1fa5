"""What an HTTP server answers when it cannot serve, to many calls in flight: forgotten sessions, statuses with and
without Retry-After, replies that are cut, certificates that nobody vouches for.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tests.conftest import StartWorker
from tests.faults.ledger import IN_FLIGHT, Ledger, check_answers, submit_calls
from tests.processes import Worker, free_port, listening
from tests.security.certificates import Authority
from tests.servers import witness_http

FORGETTING = [f"old-sse-{kind}" for kind in witness_http.FORGETTING]
ASKED_TO_WAIT = [
    f"{era}-json-{answer}"
    for era in ("new", "old")
    for answer in (
        "status-429-seconds",
        "status-503-seconds",
        "status-503-date",
        "status-429",
        "connect-status-503-seconds",
    )
]
ASKED_TO_WAIT_LONG = ["new-json-status-429-late", "old-json-status-503-late"]
REFUSING = [f"{era}-json-status-{status}" for era in ("new", "old") for status in (401, 403)]
REFUSING_AT_ONCE = [f"{era}-json-connect-status-{status}" for era in ("new", "old") for status in (401, 403)]
BREAKING = [
    "new-json-status-500",
    "new-json-status-503",
    "old-json-status-502",
    *[
        f"{era}-{reply}-cut-{place}"
        for era in ("new", "old")
        for reply in ("json", "sse")
        for place in ("headers", "body")
    ],
]
FAILING = [*ASKED_TO_WAIT, *ASKED_TO_WAIT_LONG, *REFUSING, *BREAKING]
SERVERS = [*FORGETTING, *FAILING, *REFUSING_AT_ONCE]
KEYS = [f"key{number}" for number in range(IN_FLIGHT)]
FEW = KEYS[:16]
"""Of servers that answer each call on its own merits, all of which are called at once."""


@pytest.fixture(scope="module")
def tls_url(directory: Path) -> Iterator[str]:
    """Of a witness with a certificate of an unknown authority."""
    port, place = free_port(), directory / "tls"
    place.mkdir()
    certificate, key = Authority(directory, "unknown").issue("server")
    command = [sys.executable, witness_http.__file__, str(port), str(place), "--tls", str(certificate), str(key)]
    with listening(command, port, directory):
        yield f"https://127.0.0.1:{port}/new/json/none"


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, witness_url: str, tls_url: str) -> Worker:
    servers = {name: {"url": f"{witness_url}/{name.replace('-', '/', 2)}"} for name in SERVERS}
    return start_worker({**servers, "tls": {"url": tls_url}}, arguments=["-c", "2048"])


@pytest.fixture(scope="module")
def answers(tools: ToolExecutor) -> dict[str, list[ToolResult]]:
    """Of the servers that fail by themselves: all at once, to save time; each test looks at one."""
    pending = {server: submit_calls(tools, server, FEW) for server in FAILING}
    return {server: [call.result() for call in calls] for server, calls in pending.items()}


def call_all(tools: ToolExecutor, server: str) -> list[ToolResult]:
    """The answers to 64 calls at once, half of them of a tool that is not harmless to repeat."""
    return [call.result() for call in submit_calls(tools, server, KEYS)]


def outcomes(results: list[ToolResult]) -> set[tuple[Outcome, ErrorCode | None]]:
    return {(result.outcome, result.error_code) for result in results}


@pytest.mark.parametrize("server", FORGETTING)
def test_a_forgotten_session_is_replaced_once_and_no_call_lost(
    tools: ToolExecutor, directory: Path, server: str
) -> None:
    ledger = Ledger(directory / server)
    forget = ToolCall(id="f", name=f"{server}.forget", arguments={"key": "forget"})
    assert tools.execute(forget).outcome is Outcome.OK
    assert outcomes(call_all(tools, server)) == {(Outcome.OK, None)}
    assert ledger.runs() == dict.fromkeys([*KEYS, "forget"], 1)
    assert ledger.starts - 1 == 1


@pytest.mark.parametrize("server", ASKED_TO_WAIT)
def test_a_server_that_asks_to_wait_is_asked_again_when_it_wants(
    answers: dict[str, list[ToolResult]], directory: Path, server: str
) -> None:
    ledger = Ledger(directory / server)
    assert outcomes(answers[server]) == {(Outcome.OK, None)}
    assert ledger.runs() == dict.fromkeys(FEW, 1)
    assert ledger.lines("early") == []


@pytest.mark.parametrize("server", ASKED_TO_WAIT_LONG)
def test_a_wait_beyond_the_deadline_is_not_begun(
    answers: dict[str, list[ToolResult]], directory: Path, server: str
) -> None:
    results = answers[server]
    # Those that were not sent yet are told so before they are.
    told = {(result.error_code, result.attempts, bool(result.retry_after_s)) for result in results}
    asked = (ErrorCode.SERVER_UNAVAILABLE, 1, False)
    assert asked in told
    assert told <= {asked, (ErrorCode.RATE_LIMITED, 0, True)}
    assert Ledger(directory / server).runs() == {}


@pytest.mark.parametrize("server", REFUSING)
def test_a_refusal_is_final(answers: dict[str, list[ToolResult]], directory: Path, server: str) -> None:
    ledger = Ledger(directory / server)
    results = answers[server]
    assert outcomes(results) == {(Outcome.UNAVAILABLE, ErrorCode.SERVER_REFUSED)}
    assert len(ledger.lines("request", "tools/call")) == len(FEW)
    assert ledger.runs() == {}


@pytest.mark.parametrize("server", REFUSING_AT_ONCE)
def test_a_connection_that_is_refused_is_not_tried_again(tools: ToolExecutor, directory: Path, server: str) -> None:
    ledger = Ledger(directory / server)
    before = len(ledger.lines("request"))  # the worker tried when it started
    result = tools.execute(ToolCall(id="c", name=f"{server}.look", arguments={}))
    assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.SERVER_REFUSED)
    methods = [line[1] for line in ledger.lines("request")[before:]]
    # A server that forbids the probe for the new era may still allow the handshake of the old one.
    assert methods == (["server/discover", "initialize"] if "403" in server else ["server/discover"])
    assert outcomes(call_all(tools, server)) == {(Outcome.UNAVAILABLE, ErrorCode.SERVER_REFUSED)}


def test_an_untrusted_certificate_is_final(tools: ToolExecutor, directory: Path) -> None:
    ledger = Ledger(directory / "tls" / "connections")
    before = len(ledger.lines())
    result = tools.execute(ToolCall(id="c", name="tls.look", arguments={}))
    assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.SERVER_REFUSED)
    assert "certificate" in result.content
    assert len(ledger.lines()) - before == 1
    assert outcomes(call_all(tools, "tls")) == {(Outcome.UNAVAILABLE, ErrorCode.SERVER_REFUSED)}
    assert Ledger(directory / "tls" / "new-json-none").lines() == []


@pytest.mark.parametrize("server", BREAKING)
def test_after_a_break_in_mid_call_only_safe_calls_are_resent(
    answers: dict[str, list[ToolResult]], directory: Path, server: str
) -> None:
    ledger = Ledger(directory / server)
    results = answers[server]
    check_answers(results, ledger, lost=FEW[1::2])
    assert {result.error_code for result in results if result.is_error} == {ErrorCode.SESSION_LOST}
    assert {result.attempts for result in results[::2]} == {2}
    assert ledger.starts == 1

"""Servers that are gone: first calls find that out, the others fail at once, until they are back."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.celery_app import agent_app
from tarsy_tasks.telemetry.health_records import CHECK_INTERVAL_S
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until

CONNECT_S = 4.0
TIMEOUTS = {"connect_s": CONNECT_S, "recreate_s": 2}


class BlackHole:
    """Takes connections and never says a word."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._taken: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/mcp"

    @property
    def connections(self) -> int:
        return len(self._taken)

    def _take(self) -> None:
        while True:
            try:
                self._taken.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._taken):
            each.close()


@pytest.fixture(scope="module")
def black_hole() -> Iterator[BlackHole]:
    found = BlackHole()
    yield found
    found.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of two servers, which says nothing for as long as there is no file `well` beside it."""
    found = tmp_path_factory.mktemp("late") / "server"
    entry = witness(Ledger(found.with_name("ledger")))
    command = f"{entry['command']} {' '.join(entry['args'])}"
    found.write_text(f"#!/bin/sh\nif [ -e {found.with_name('well')} ]; then exec {command}; fi\nexec sleep 600\n")
    found.chmod(0o755)
    return found


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, black_hole: BlackHole, program: Path) -> Worker:
    unset = {"command": "true", "env": {"TOKEN": "${NOT_SET_ANYWHERE}"}, "timeouts": TIMEOUTS}
    hole = {"url": black_hole.url, "timeouts": TIMEOUTS}
    late = {"command": str(program), "timeouts": TIMEOUTS}
    return start_worker({"hole": hole, "late": late, "checked": late, "unset": unset})


def call(server: str) -> ToolResult:
    return ToolExecutor([server], timeout_s=20).execute(
        ToolCall(id="1", name=f"{server}.look", arguments=json.dumps({"key": server}))
    )


def call_until_gone(server: str) -> ToolResult:
    def gone() -> ToolResult | None:
        result = call(server)
        assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.SERVER_UNAVAILABLE)
        return result if "unreachable" in result.content else None

    return wait_until(gone, f"{server} is known to be gone")


def test_calls_of_a_server_that_is_gone_do_not_try_it_one_by_one(black_hole: BlackHole) -> None:
    known = call_until_gone("hole")
    assert f"did not complete the handshake within {CONNECT_S:g} s" in known.content
    assert "did not run" in known.content
    before, started = black_hole.connections, time.monotonic()
    results = [call("hole") for _ in range(20)]
    assert {result.error_code for result in results} == {ErrorCode.SERVER_UNAVAILABLE}
    assert time.monotonic() - started < CONNECT_S, "each of them waited for a connection"
    assert black_hole.connections <= before + 1, "one of them may be the one that tries again"
    with ToolExecutor(["hole"], timeout_s=20) as tools:
        tools.list_tools()
        assert "unreachable" in tools.failed_servers()["hole"]


def test_a_server_that_is_back_is_found_by_a_check_or_a_call(program: Path) -> None:
    for server in ("late", "checked"):
        assert "handshake" in call_until_gone(server).content
    program.with_name("well").touch()

    def is_found_by_a_check() -> bool:
        # A check that is running already began before the server was back, and says nothing about it.
        agent_app().send_task(CHECK_SERVER, ("checked",))
        return call("checked").outcome is Outcome.OK

    wait_until(is_found_by_a_check, "the check found it", timeout_s=CHECK_INTERVAL_S - 4)
    wait_until(lambda: call("late").outcome is Outcome.OK, "a call found it", timeout_s=CHECK_INTERVAL_S + 5)


def test_a_wrong_configuration_is_reported_each_time() -> None:
    for _ in range(3):
        assert call("unset").error_code is ErrorCode.SERVER_MISCONFIGURED

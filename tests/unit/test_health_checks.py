"""The rounds of a worker's health checks: what one server's failure, or a changed configuration, means for the rest."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.telemetry.health_records import HealthRecord, TakenConfiguration, read_health
from tarsy_tasks.worker.reporting.alerts import AlertFeed
from tarsy_tasks.worker.reporting.health_checks import HealthChecks
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connections import Connections, build_connections
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session_loop import SessionLoop
from tests.faults.ledger import Ledger, witness
from tests.processes import wait_until

WORKER = "w@test"


class Stage:
    """The checks of a worker whose servers are connected, not started yet."""

    def __init__(self, loop: SessionLoop, client: Any, directory: Path) -> None:
        self.loop = loop
        self.client = client
        self.directory = directory
        self.taken = TakenConfiguration("first")
        self.on_record: Callable[[str], None] = lambda _: None
        self.served = Connections()
        self.connections: list[ServerConnection] = []
        self.context = SessionContext()
        self.checks = HealthChecks(
            self.served, loop, client, AlertFeed(), self.limit_of, lambda: self.taken, worker=WORKER
        )
        self.served.inform(self.checks)

    def limit_of(self, server: str) -> int:
        """Called for each record."""
        self.on_record(server)
        return 4

    def serve(self, *names: str) -> None:
        """All of them in one round, unless one is under way."""
        servers = [ServerConfig(name=name, **witness(Ledger(self.directory / name))) for name in names]
        connections = list(build_connections(servers, self.context).values())
        self.connections += connections

        async def put() -> None:
            for connection in connections:
                await connection.connected()
            for connection in connections:
                self.served.put(connection)

        self.loop.submit(put()).result(30)

    def record(self, server: str) -> HealthRecord | None:
        return read_health(self.client, [server])[server].workers.get(WORKER)

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()


@contextmanager
def stage_of(client: Any, directory: Path) -> Iterator[Stage]:
    loop = SessionLoop()
    loop.start()
    stage = Stage(loop, client, directory)
    try:
        yield stage
        stage.checks.stop()
    finally:
        loop.submit(stage.close()).result(30)
        loop.stop()
        stage.context.child_watch.close()


def test_a_step_that_fails_does_not_cost_the_others_theirs(
    client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(server: str) -> None:
        if server == "odd":
            raise ArithmeticError("odd")

    with stage_of(client, tmp_path) as stage:
        stage.on_record = fail
        stage.serve("odd", "even")
        stage.checks.request("even", 0.0)
        stage.checks.start()
        wait_until(lambda: read_health(client, ["even"])["even"].check, "the check is answered")
        assert stage.record("even")
        assert not stage.record("odd")
        assert "a step of the health checks failed" in caplog.text
        stage.on_record = lambda _: None
        stage.checks.request("odd", None)
        wait_until(lambda: stage.record("odd"), "its next check counts")


def test_a_taken_configuration_is_reported_first(client: Any, tmp_path: Path) -> None:
    seen: list[str | None] = []
    gate, is_waiting = threading.Event(), threading.Event()

    def look(server: str) -> None:
        if server == "slow":
            is_waiting.set()
            gate.wait(30)
        elif server == "later":
            record = stage.record("first")
            seen.append(record.configuration if record else None)

    with stage_of(client, tmp_path) as stage:
        stage.on_record = look
        stage.serve("first")
        stage.checks.start()
        wait_until(lambda: stage.record("first"), "it has a record")
        stage.serve("slow")
        assert is_waiting.wait(30)
        stage.serve("later")  # a round of its own, with the report
        stage.taken = TakenConfiguration("second")
        stage.checks.report_configuration()
        gate.set()
        wait_until(lambda: stage.record("later"), "the round is over")
    assert seen[0] == "second"


def test_a_report_of_the_configuration_is_no_check(client: Any, tmp_path: Path) -> None:
    with stage_of(client, tmp_path) as stage:
        stage.serve("steady")
        stage.checks.start()
        before = wait_until(lambda: stage.record("steady"), "it has a record")
        stage.taken = TakenConfiguration("second", "line 3 is wrong")
        stage.checks.report_configuration()
        wait_until(lambda: (stage.record("steady") or before).configuration == "second", "it is reported")
        now = stage.record("steady")
        assert now is not None
        assert now.configuration_error == "line 3 is wrong"
        assert now.checked_at == before.checked_at

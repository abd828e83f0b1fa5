"""A configuration that a worker could take in part only, because of an error, is not the one that it has."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tarsy_tasks.config.watch import FileWatch
from tarsy_tasks.settings import Settings
from tarsy_tasks.telemetry.health_records import TakenConfiguration
from tarsy_tasks.worker.process.generation import Generation, load_generation, watch_files
from tarsy_tasks.worker.process.reload import ConfigurationReload
from tests.processes import wait_until

Save = Any
OPEN: dict[str, Any] = {"agents": {"*": {}}}
CLOSED: dict[str, Any] = {"agents": {"*": {"allow": []}}}


class Parts:
    """The parts of a worker that get a new configuration. The last one fails `failures` times."""

    def __init__(self) -> None:
        self.failures = 0
        self.taken: list[bool] = []
        self.app: Any = SimpleNamespace(log_masking=SimpleNamespace())
        self.context: Any = SimpleNamespace(
            connections=SimpleNamespace(inform=lambda _: None),
            record_maskers={},
            policy=None,
            taken=None,
            settings=Settings(),
            masker=SimpleNamespace(mask=str),
            checks=None,
            in_flight=None,
            quarantine=None,
            lease_s=20.0,
        )
        self.loop, self.inheritance, self.server_changes = self, self, self
        self.runner: Any = SimpleNamespace(replace_interceptors=lambda *_: None)
        self.isolated = None
        self.limit_reporter, self.fetcher = self, self

    def submit(self, coroutine: Coroutine[Any, Any, str]) -> "Future[str]":
        done: Future[str] = Future()
        try:
            done.set_result(asyncio.run(coroutine))
        except ConnectionError as error:
            done.set_exception(error)
        self.taken.append(done.exception() is None)
        return done

    def replace_servers(self, servers: Any) -> None: ...

    def apply(self, servers: Any) -> str:
        return ""

    def replace(self, report: Any) -> None: ...

    def build_fetch_limits(self) -> str:
        return ""

    async def replace_terms(self, weights: Any, limiting: str) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Save:
    path = tmp_path / "mcp.json"
    monkeypatch.setenv("TARSY_MCP_CONFIG", str(path))
    monkeypatch.delenv("TARSY_POLICY", raising=False)

    def save(policy: dict[str, Any]) -> None:
        path.write_text(json.dumps({"mcpServers": {"desk": {"command": "x"}}, "policy": policy}))

    return save


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def reload(parts: Parts, save: Save) -> Iterator[ConfigurationReload]:
    save(OPEN)
    with running(parts, watch_files(), load_generation()) as reload:
        yield reload


@contextmanager
def running(parts: Parts, watch: FileWatch, generation: Generation) -> Iterator[ConfigurationReload]:
    pool: Any = parts
    reload = ConfigurationReload(pool, generation, watch, lambda _: True)
    reload.start(SimpleNamespace(hub=SimpleNamespace(call_soon=lambda _: None)))
    yield reload
    reload.stop()


class Served(dict[str, object]):
    """The connections of a worker."""

    removed = ()

    def inform(self, _: object) -> None: ...


def test_a_worker_that_stops_takes_messages_from_no_queue(parts: Parts, save: Save) -> None:
    save(OPEN)
    scheduled: list[Callable[[], None]] = []
    taken: list[str] = []
    parts.context.connections = Served(desk=None)
    parts.app.amqp = SimpleNamespace(queues=("mcp.desk", "mcp.desk.check"))
    consumer = SimpleNamespace(
        hub=SimpleNamespace(call_soon=scheduled.append),
        task_consumer=SimpleNamespace(consuming_from=lambda _: False),
        add_task_queue=taken.append,
    )
    pool: Any = parts
    reload = ConfigurationReload(pool, load_generation(), watch_files(), lambda _: True)
    reload.start(consumer)
    reload.stop()
    scheduled.pop()()
    assert not taken
    reload.start(consumer)
    scheduled.pop()()
    assert taken == ["mcp.desk", "mcp.desk.check"]
    reload.stop()


def test_what_is_saved_while_a_worker_starts_is_taken(parts: Parts, save: Save) -> None:
    save(OPEN)
    watch, generation = watch_files(), load_generation()
    save(CLOSED)
    with running(parts, watch, generation):
        wait_until(lambda: parts.taken == [True], "it was taken")
    assert parts.context.policy.version == load_generation().policy.version


def test_what_was_taken_in_part_is_not_what_the_worker_has(
    reload: ConfigurationReload, parts: Parts, save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    first = load_generation()
    assert first.policy is not None
    parts.failures = 1
    save(CLOSED)
    wait_until(lambda: parts.taken == [False], "it was taken in part", 20)
    save({"agents": "none"})
    wait_until(lambda: parts.context.taken is not None, "a wrong one was refused", 20)
    assert parts.context.taken.version == first.version
    assert parts.context.policy.version != first.policy.version
    save(OPEN)
    wait_until(lambda: parts.context.taken == TakenConfiguration(first.version), "the first one is back", 20)
    assert parts.context.policy.version == first.policy.version
    assert "a changed configuration could not be taken" in caplog.text

"""What the tests of calls that wait have in common: their servers, workers that are killed, a restart of everything."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import redis

from tarsy_tasks.celery_app import build_app
from tests.faults.ledger import Ledger
from tests.processes import Worker, environment_of, wait_until
from tests.servers import curious
from tests.servers.tasks_http import Task, TasksServer
from tests.valkey import Valkey
from tests.warm_start import warm_command

__all__ = [
    "SHORT_LEASE",
    "TIMEOUT_S",
    "Everything",
    "Start",
    "curious_server",
    "is_up",
    "kill",
    "restartable",
    "revoke",
    "wait_for_task",
]

TIMEOUT_S = 60
SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'
Start = Callable[..., Worker]


def curious_server(ledger: Ledger, *options: str, **settings: Any) -> dict[str, Any]:
    """The configuration of a stdio server that asks for input."""
    return {**warm_command("-m", curious.__name__, str(ledger.path), *options), **settings}


def wait_for_task(server: TasksServer, key: str, gets: int = 1) -> Task:
    """The task of the call with that key, once it was asked for so often."""
    found = wait_until(lambda: server.task_of(key), f"the task of {key}", TIMEOUT_S)
    wait_until(lambda: found.gets >= gets, f"somebody asks for the task of {key}", TIMEOUT_S)
    return found


def revoke(worker: Worker, task_id: str) -> None:
    """As an operator does."""
    with closing(build_app({"broker_url": worker.environment["TARSY_REDIS_URL"]})) as app:
        app.control.revoke(task_id)


def kill(worker: Worker) -> None:
    worker.process.kill()
    worker.process.wait()


def is_up(table: Any) -> bool:
    try:
        return bool(table.ping())
    except redis.RedisError:
        return False


class Everything:
    """A Redis that keeps all it was told, and one worker; `restart` kills both and starts them again.

    Attributes:
        table: Redis.
    """

    def __init__(self, directory: Path, servers: dict[str, Any], valkey: Valkey) -> None:
        self.table: Any = redis.Redis.from_url(self._address(valkey))
        self._directory = directory
        self._servers = servers
        self._valkey = valkey
        self.worker = self._start("first")

    @staticmethod
    def _address(valkey: Valkey) -> str:
        return f"{valkey.connection_url}/0"

    def _start(self, name: str) -> Worker:
        worker = Worker(self._directory / name, self._servers, self._address(self._valkey), settings=SHORT_LEASE)
        worker.wait_until_ready()
        return worker

    def restart(self) -> None:
        kill(self.worker)
        self.restart_redis()
        self.worker = self._start("second")

    def restart_redis(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._valkey.terminate()
        meanwhile()
        self._valkey.start()
        wait_until(lambda: is_up(self.table), "Redis is back")


@contextmanager
def restartable(directory: Path, servers: dict[str, Any]) -> Iterator[Everything]:
    """Everything, whose environment is the agent's."""
    with Valkey(appendonly="yes", appendfsync="always") as valkey:
        everything = Everything(directory, servers, valkey)
        try:
            with environment_of(everything.worker):
                yield everything
        finally:
            kill(everything.worker)
            everything.table.close()

"""Four workers under one policy, and the applications of agents who each have a user of Redis and nothing else."""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any

import psutil
import pytest

from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import TarsyApp, build_app
from tests.processes import Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.valkey import Valkey

__all__ = ["AGENTS", "WORKERS", "agents_apps", "agents_valkey", "start_fleet", "stopped"]

AGENTS = ("sre", "dev", "ops")
SERVERS = ("desk", "vault")
WORKERS = 4


def agents_valkey() -> Valkey:
    """A Redis where these agents may call these servers."""
    return Valkey(agents=tuple(AgentUser(name, SERVERS) for name in AGENTS))


@contextmanager
def start_fleet(
    valkey: Valkey,
    tmp_path_factory: pytest.TempPathFactory,
    policy: Mapping[str, Any],
    server: Mapping[str, Any],
    settings: str = "",
) -> Iterator[list[Worker]]:
    """The workers; this process has the environment of the first one.

    Args:
        server: The configuration of each server.
        settings: Text of the workers' `celeryconfig.py`.
    """
    path = tmp_path_factory.mktemp("policy") / "policy.json"
    path.write_text(json.dumps(policy))
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                Worker(
                    tmp_path_factory.mktemp("worker"),
                    dict.fromkeys(SERVERS, server),
                    url_of(valkey.port),
                    environment={"TARSY_POLICY": str(path)},
                    settings=settings,
                    name=f"w{n}",
                )
            )
            for n in range(WORKERS)
        ]
        for worker in started:
            worker.wait_until_ready()
        with environment_of(started[0]):
            yield started
        for worker in started:
            worker.ask_to_stop()


@contextmanager
def agents_apps(valkey: Valkey, agents: Sequence[str] = AGENTS) -> Iterator[dict[str, TarsyApp]]:
    """The application of each agent; `agent` is shared, so its calls are anonymous."""
    with ExitStack() as stack:
        urls = {name: url_of(valkey.port, name) for name in (*agents, "agent")}
        yield {
            name: stack.enter_context(closing(build_app({"broker_url": url, "result_backend": url})))
            for name, url in urls.items()
        }


def _is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


@contextmanager
def stopped(*workers: Worker) -> Iterator[None]:
    """Workers do nothing in the block, and renew no lease."""
    for worker in workers:
        os.kill(worker.pid, signal.SIGSTOP)
    for worker in workers:
        wait_until(partial(_is_stopped, worker.pid), "it has stopped")
    try:
        yield
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):  # it may have been killed since
                os.kill(worker.pid, signal.SIGCONT)

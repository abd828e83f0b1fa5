"""Workers on one configuration file, which changes while they run."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tarsy_tasks.config import load_config
from tarsy_tasks.config.record import ConfigurationRecord
from tarsy_tasks.config.record_editing import ServersRecord
from tarsy_tasks.policy import load_policy
from tarsy_tasks.telemetry.health_records import HealthRecord, read_health
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, wait_until
from tests.redis_users import as_user

GRACE_S = 2
TAKEN_S = 20.0
"""A bound for a busy machine. A worker looks once a second, and a file has to stay the same for a second."""
DESK = {"desk": DEMO_SERVER}


class Deployment:
    """Workers on one configuration file.

    Args:
        of_workers: Settings of Celery for each worker, as the content of a file.
        arguments: What each worker's command line has besides.
        servers: What is configured at first.
        record_url: The Redis that has the configuration; None: it is the file.
    """

    def __init__(
        self,
        start_worker: StartWorker,
        directory: Path,
        client: Any,
        of_workers: Sequence[str] = ("", ""),
        arguments: Sequence[list[str]] | None = None,
        servers: dict[str, Any] = DESK,
        record_url: str | None = None,
    ) -> None:
        self.path = directory / "mcp.json"
        self.record = None if record_url is None else _build_record(record_url, directory)
        self.configured = str(self.path) if self.record is None else "redis"
        self.directory = directory
        self.client = client
        self.saved: dict[str, Any] = {}
        self.more: dict[str, Any] = {}
        self.save(servers)
        environment = {"TARSY_MCP_CONFIG": self.configured, "TARSY_SHUTDOWN_GRACE_S": str(GRACE_S)}
        self.workers = [
            start_worker(DESK, environment=environment, wait=False, settings=settings, arguments=more)
            for settings, more in zip(of_workers, arguments or [[]] * len(of_workers), strict=True)
        ]
        for worker in self.workers:
            worker.wait_until_ready()

    def save(self, servers: dict[str, Any], **more: Any) -> None:
        """As an editor does: whole, or not at all."""
        self.saved, self.more = servers, more
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps({"mcpServers": servers, **more}))
        written.replace(self.path)
        if self.record is not None:
            self.record.publish(self.path)

    def records(self, server: str) -> list[HealthRecord]:
        return [*read_health(self.client, [server])[server].workers.values()]

    def wait_for(self, found: Callable[[HealthRecord], bool], server: str = "desk") -> None:
        """Until both workers report it."""

        def holds() -> bool:
            records = self.records(server)
            return len(records) == len(self.workers) and all(map(found, records))

        wait_until(holds, f"both workers report it of {server}: {self.records(server)}", TAKEN_S)

    def serve(self, servers: dict[str, Any], **more: Any) -> None:
        """Save a configuration, and wait until both workers have it."""
        before = {record.configuration for record in self.records("desk")}
        self.save(servers, **more)
        self.wait_for(lambda record: record.configuration not in before)


def _build_record(redis_url: str, directory: Path) -> ServersRecord:
    copies = directory / "operator"
    copies.mkdir()
    return ServersRecord(ConfigurationRecord(as_user(redis_url, "operator"), copies, load_config), load_policy, "ann")

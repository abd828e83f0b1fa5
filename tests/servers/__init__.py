"""MCP servers written for the tests, and how those that listen on a port are started."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import ServiceProcess, wait_until

__all__ = ["listening"]


@contextmanager
def listening(
    command: list[str], port: int, directory: Path, environment: dict[str, str] | None = None
) -> Iterator[ServiceProcess]:
    """A server process, from the moment it listens on its port of 127.0.0.1; gone afterwards."""
    process = ServiceProcess(
        command, directory / f"server-{port}.log", {**os.environ, **(environment or {})}, directory
    )

    def listens() -> bool:
        assert process.process.poll() is None, process.log
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, f"{command} listens on port {port}")
        yield process
    finally:
        process.stop()

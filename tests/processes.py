"""The real parts that tests run: a worker process on a configuration of its own, and how to wait for what happens
elsewhere.
"""

import inspect
import json
import operator
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
from tenacity import AsyncRetrying, RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from tests.forked import ForkedProcess, needs_new_interpreter
from tests.redis_users import as_user
from tests.warm_start import warm_command

T = TypeVar("T")

DEMO_SERVER = warm_command("-m", "tarsy_tasks.demo.server")


def _looks(timeout_s: float, every_s: float) -> dict[str, Any]:
    """How tenacity repeats a look until it finds something."""
    return {
        "retry": retry_if_result(operator.not_),
        "wait": wait_fixed(every_s),
        "stop": stop_after_delay(timeout_s),
    }


def wait_until(found: Callable[[], T | None], what: str, timeout_s: float = 20.0) -> T:
    """The first true value of `found`; fails the test, naming `what`, when there is none in time."""
    try:
        return Retrying(**_looks(timeout_s, 0.02))(found)  # pyright: ignore[reportReturnType]
    except RetryError:
        if value := found():  # this process itself may have been the slow one
            return value
        raise AssertionError(f"did not happen within {timeout_s:g} s: {what}") from None


async def until(found: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Return once `found()` is true, which may depend on other tasks of this event loop; fails the test, quoting
    `found`, if that takes too long. It may be a coroutine function.
    """
    try:
        await AsyncRetrying(**_looks(timeout_s, 0.01))(found)
    except RetryError:
        raise AssertionError(f"did not happen within {timeout_s:g} s: {inspect.getsource(found).strip()}") from None


def read_command(process: psutil.Process) -> list[str]:
    """Its command line; empty once it has ended, also while its parent has not waited for it (a zombie)."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # ZombieProcess is one, too
        return []


def own_children() -> list[list[str]]:
    """The command lines of all live descendants of this process, without the servers that the whole suite shares."""
    commands = map(read_command, psutil.Process().children(recursive=True))
    return [
        command for command in commands if not any("valkey" in word or "multiprocessing" in word for word in command)
    ]


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class ServiceProcess:
    """A process of ours whose output goes to a file. As a context manager it ends with its block."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str], cwd: Path) -> None:
        self.log_path = log
        self._family: list[psutil.Process] | None = None
        self.process = self._start(command, environment, cwd)

    def _start(
        self, command: list[str], environment: Mapping[str, str], cwd: Path
    ) -> "subprocess.Popen[bytes] | ForkedProcess":
        by_fork = command[0] == sys.executable and (command[1] == "-m" or not command[1].startswith("-"))
        if not by_fork or needs_new_interpreter(environment):
            return self._start_new(command, environment, cwd)
        self.log_path.touch()
        return ForkedProcess(command[1:], self.log_path, environment, cwd)

    def _start_new(
        self, command: list[str], environment: Mapping[str, str], cwd: Path
    ) -> "subprocess.Popen[bytes] | ForkedProcess":
        with self.log_path.open("wb") as out:
            return subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, cwd=cwd
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """All live descendants."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def find_children(self, argument: str) -> list[psutil.Process]:
        """Those that were started with this argument."""
        return [child for child in self.children() if argument in read_command(child)]

    def wait_for_log(self, text: str, timeout_s: float = 90.0) -> None:
        def found() -> bool:
            assert self.process.poll() is None or text in self.log, f"it ended with {self.process.poll()}:\n{self.log}"
            return text in self.log

        wait_until(found, f"{text!r} in {self.log_path.name}", timeout_s)

    def ask_to_stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal, once: Python dies of another one at its very end. `stop` waits for what follows."""
        if self._family is None:
            self._family = self.children()
            if self.process.poll() is None:
                self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        """End it, and return its exit code; fails the test when it does not end, or leaves children behind."""
        self.ask_to_stop(number)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it did not end within {timeout_s:g} s:\n{self.log[-4000:]}") from None
        _, alive = psutil.wait_procs(self._family or [], timeout=5)
        for child in alive:
            child.kill()
        assert not alive, f"left behind: {alive}"
        return code


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
        wait_until(listens, f"{command} listens on port {port}", 60)
        yield process
    finally:
        process.stop()


class Worker(ServiceProcess):
    """A Celery worker of the package, with its own configuration file and working directory.

    Args:
        settings: Of Celery, as the content of a `celeryconfig.py`.
        mingle: Whether it looks for other workers when it starts, as it does in deployments. That takes a second.

    Attributes:
        environment: Of an operator who looks after it; it has itself the same one as another user of Redis.
    """

    def __init__(
        self,
        directory: Path,
        servers: dict[str, Any],
        redis_url: str,
        *,
        arguments: list[str] | None = None,
        environment: dict[str, str] | None = None,
        name: str = "worker",
        interceptors: list[str] | None = None,
        settings: str = "",
        mingle: bool = False,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        if settings:
            (directory / "celeryconfig.py").write_text(settings)
        self.config_path = directory / "mcp.json"
        self.config_path.write_text(json.dumps({"mcpServers": servers, "interceptors": interceptors or []}))
        self.environment = {
            **os.environ,
            "TARSY_REDIS_URL": as_user(redis_url, "operator"),
            "TARSY_MCP_CONFIG": str(self.config_path),
            "TARSY_RUN_DIR": str(directory / "run"),
            "TARSY_STARTUP": "degraded",  # many tests have servers that do not start, on purpose
            **(environment or {}),
        }
        command = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "worker", "-l", "INFO", "-n", f"{name}@%h"]
        own = self.environment_of("worker")
        arguments = [*([] if mingle else ["--without-mingle"]), *(arguments or [])]
        super().__init__([*command, *arguments], directory / f"{name}.log", own, directory)

    def environment_of(self, user: str) -> dict[str, str]:
        """The environment of another part of the deployment, by its user of Redis."""
        return {**self.environment, "TARSY_REDIS_URL": as_user(self.environment["TARSY_REDIS_URL"], user)}

    def wait_until_ready(self) -> None:
        self.wait_for_log(" ready.")


class Flower(ServiceProcess):
    """`tarsy-tasks flower`, from the moment it answers.

    Attributes:
        url: Where it serves, without a slash at the end.
    """

    def __init__(
        self, directory: Path, redis_url: str, options: tuple[str, ...], environment: Mapping[str, str]
    ) -> None:
        port = free_port()
        prefix = next((option.partition("=")[2] for option in options if option.startswith("--url-prefix=")), "")
        self.url = f"http://127.0.0.1:{port}{prefix and f'/{prefix}'}"
        script = str(Path(sys.executable).parent / "tarsy-tasks")
        command = [sys.executable, script, "flower", "--address=127.0.0.1", f"--port={port}"]
        surroundings = {
            **os.environ,
            "TARSY_REDIS_URL": as_user(redis_url, "flower"),
            "TARSY_MCP_CONFIG": str(directory / "no-configuration.json"),
            **environment,
        }
        super().__init__([*command, *options], directory / "flower.log", surroundings, directory)
        wait_until(self._answers, f"Flower answers: {self.log}", timeout_s=60)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            with urllib.request.urlopen(f"{self.url}/healthcheck", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False


@contextmanager
def environment_of(worker: Worker) -> Iterator[None]:
    """The agent's half of a worker's environment, for executors made in this process."""
    names = ("TARSY_REDIS_URL", "TARSY_MCP_CONFIG")
    before = {name: os.environ.get(name) for name in names}
    agents = worker.environment_of("agent")
    os.environ.update({name: agents[name] for name in names})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

"""A server that tries everything to get out of its sandbox, where the kernel makes namespaces and where it does not."""

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, ToolResult
from tarsy_tasks.masking import process
from tarsy_tasks.worker.transport import watchdog
from tarsy_tasks.worker.transport.sandbox import launcher
from tarsy_tasks.worker.transport.sandbox.temporary import TemporaryFolder
from tests.forked import ForkedProcess
from tests.poorer_kernel import CAPABILITIES, LANDLOCK, UNSHARE, without
from tests.processes import Worker, environment_of, is_alive, read_command, wait_until
from tests.servers import escaping

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")

HERE = str(Path(escaping.__file__).parent)
SERVER = {"command": sys.executable, "args": ["-S", "-E", escaping.__file__]}
LIMITS = {"memory_mb": 256, "processes": 24}


class PoorerWorker(Worker):
    """On a kernel that makes no namespaces."""

    refused = (UNSHARE,)

    def _start(
        self, command: list[str], environment: Mapping[str, str], cwd: Path
    ) -> "subprocess.Popen[bytes] | ForkedProcess":
        return self._start_new([*without(*self.refused), *command], environment, cwd)


class PoorestWorker(PoorerWorker):
    """Nor has it Landlock; and root is nobody special there, like its servers."""

    refused = (UNSHARE, LANDLOCK, CAPABILITIES)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the servers may not use, with one that they may."""
    place = tmp_path_factory.mktemp("place")
    (place / "own").mkdir()
    (place / ".ssh").mkdir()
    (place / ".ssh" / "id_ed25519").write_text("a private key")
    (place / "own" / "link").symlink_to(place / ".ssh")
    return place


@pytest.fixture(scope="module", params=["namespaces", "none"])
def worker(request: pytest.FixtureRequest, place: Path, redis_url: str) -> Iterator[Worker]:
    sandbox = {"read": [HERE], "write": [str(place / "own")], **LIMITS}
    kinds = Worker if request.param == "namespaces" else PoorerWorker
    servers = {
        "strict": {**SERVER, "sandbox": sandbox},
        "bomb": {**SERVER, "sandbox": sandbox},
        "brief": {**SERVER, "sandbox": {**sandbox, "cpu_s": 1, "files": 64}},
        "online": {**SERVER, "sandbox": {**sandbox, "network": True}},
        "offline": {**SERVER, "sandbox": "no-network"},
        "complete": {**SERVER, "required": False, "sandbox": {**sandbox, "required": True}},
        "linked": {**SERVER, "required": False, "sandbox": {**sandbox, "read": [str(place / "own" / "link")]}},
        "lost": {**SERVER, "required": False, "sandbox": {"read": [str(place / "absent")]}},
    }
    directory = place / request.param
    with kinds(directory, servers, redis_url, name="sandbox", environment={"HOME": str(place)}) as worker:
        worker.wait_until_ready()
        with environment_of(worker):
            yield worker


def attempt(name: str, target: object = "") -> ToolResult:
    with ToolExecutor(timeout_s=60) as tools:
        return tools.execute(name, {"target": str(target)})


def refused(name: str, target: object = "") -> str:
    found = attempt(name, target)
    assert found.content.startswith("refused: "), found.content
    return found.content


@pytest.fixture
def listener() -> Iterator[int]:
    """The port of somebody who accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def unix_listener(place: Path) -> Iterator[Path]:
    """A socket where the servers may write: the path of it is not what keeps them out."""
    path = place / "own" / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(path))
        yield path
    path.unlink()


def test_the_worker_cannot_be_read_traced_or_signalled(worker: Worker) -> None:
    for server in ("strict", "offline", "online"):
        refused(f"{server}.read", f"/proc/{worker.pid}/environ")
        refused(f"{server}.memory", worker.pid)
        refused(f"{server}.trace", worker.pid)
        refused(f"{server}.kill", worker.pid)


@pytest.mark.parametrize("call", [*("shmget", "msgget", "semget"), *("shmctl", "msgrcv", "msgsnd", "semctl", "semop")])
def test_nothing_is_shared_with_other_processes_of_the_user(worker: Worker, call: str) -> None:
    assert f"[Errno {errno.EPERM}]" in refused("strict.share", call)


def test_files_outside_cannot_be_read(worker: Worker, place: Path) -> None:
    for path in (worker.config_path, place / ".ssh" / "id_ed25519", "/etc/shadow"):
        refused("strict.read", path)


def test_nothing_outside_can_be_changed(worker: Worker, place: Path) -> None:
    outside = place / "outside"
    refused("strict.write", outside)
    outside.write_text("precious")
    for way in ("write", "empty", "remove"):
        refused(f"strict.{way}", outside)
    refused("strict.write", Path(HERE) / "written")
    assert outside.read_text() == "precious"


def test_what_is_listed_can_be_used(worker: Worker, place: Path) -> None:
    own = place / "own" / "file"
    assert attempt("strict.write", own).content == "written"
    assert attempt("strict.read", own).content == "it was here"
    assert attempt("strict.remove", own).content == "removed"
    assert attempt("strict.read", "/etc/passwd").content.startswith("root:")
    assert attempt("offline.read", worker.config_path).content.startswith("{")


def test_no_socket_leads_out(worker: Worker, listener: int, unix_listener: Path) -> None:
    redis = urlsplit(worker.environment["TARSY_REDIS_URL"])
    for server in ("strict", "offline"):
        refused(f"{server}.connect", f"{redis.hostname}:{redis.port}")
        refused(f"{server}.connect", f"127.0.0.1:{listener}")
    for server in ("strict", "offline", "online"):
        refused(f"{server}.connect_unix", unix_listener)
        refused(f"{server}.connect_unix_directly", unix_listener)
        refused(f"{server}.ring")
    assert attempt("online.connect", f"127.0.0.1:{listener}").content == "connected"


def test_no_namespace_gives_new_rights(worker: Worker) -> None:
    refused("strict.namespace")


def test_the_environment_does_not_describe_the_sandbox(worker: Worker) -> None:
    found = attempt("strict.environment").content
    assert "TARSY_SANDBOX" not in found
    assert '"TMPDIR"' in found


def test_its_temporary_files_end_with_it(worker: Worker) -> None:
    def folder() -> Path:
        return Path(json.loads(attempt("bomb.environment").content)["TMPDIR"])

    first = folder()
    assert attempt("bomb.write", first / "file").content == "written"
    assert attempt("bomb.dig", first).content == "dug"
    assert attempt("bomb.allocate", "shared:1").error_code is ErrorCode.SESSION_LOST
    assert folder() != first
    wait_until(lambda: not first.exists(), "the folder is gone")


def test_temporary_files_of_a_killed_worker_are_removed() -> None:
    """By the next start: nobody holds the lock of its folder."""
    left, used, young = (TemporaryFolder() for _ in range(3))
    for folder in (left, young):
        os.close(folder._lock)
    for folder in (left, used):
        Path(folder.path, "file").touch()
        os.utime(folder.path, (0, 0))
    TemporaryFolder().remove()
    assert [Path(each.path).exists() for each in (left, used, young)] == [False, True, True]
    used.remove()
    Path(young.path).rmdir()


@pytest.mark.parametrize("kind", ["own:1", "own:8", "shared:1"])
def test_memory_ends_at_its_limit(worker: Worker, kind: str) -> None:
    """The kernel refuses what one process takes for itself; what several take, and what is shared, is counted."""
    found = attempt("bomb.allocate", kind)
    if found.outcome is Outcome.OK:
        assert "MemoryError" in found.content
        assert kind != "shared:1"
    else:
        assert found.error_code is ErrorCode.SESSION_LOST, found.content
        assert "sandbox: ended, because its processes use more than `memory_mb` (256)" in found.content
        assert kind != "own:1"
    # One that was only refused more may still be ended for what it has.
    wait_until(lambda: attempt("bomb.read", "/etc/passwd").outcome is Outcome.OK, "the next process of the server")


def test_the_kernel_limits_its_processes(worker: Worker) -> None:
    """Not those of root, which are only counted: so this is read, not tried."""
    limits = attempt("strict.read", "/proc/self/limits").content.splitlines()
    (line,) = (line for line in limits if line.startswith("Max processes"))
    others = 4096 if isinstance(worker, PoorerWorker) else 1
    assert all(int(limit) <= LIMITS["processes"] + others for limit in line.split()[2:4]), line


def test_processes_end_at_their_limit(worker: Worker) -> None:
    found = attempt("bomb.crowd", 40)
    if found.outcome is Outcome.OK:
        assert "Resource temporarily unavailable" in found.content, "the kernel counts those of other users than root"
    else:
        assert found.error_code is ErrorCode.SESSION_LOST, found.content
        assert "sandbox: ended, because its processes are more than `processes` (24)" in found.content


def test_a_fork_bomb_stays_small(worker: Worker) -> None:
    found = attempt("bomb.fork")
    assert found.error_code is ErrorCode.SESSION_LOST or "Resource temporarily unavailable" in found.content
    # A bomb that was only refused more may still be ended for what it has.
    wait_until(lambda: attempt("bomb.read", "/etc/passwd").outcome is Outcome.OK, "the next process of the server")
    assert attempt("strict.read", "/etc/passwd").outcome is Outcome.OK


def test_files_and_cpu_time_end_at_their_limits(worker: Worker) -> None:
    assert attempt("brief.open_files", 32).content == "has 32"
    assert "Too many open files" in refused("brief.open_files", 64)
    found = attempt("brief.spin")
    assert found.error_code is ErrorCode.SESSION_LOST
    assert "its process was killed by SIGKILL" in found.content


def test_a_path_that_does_not_exist_is_an_error(worker: Worker, place: Path) -> None:
    found = attempt("lost.read", "/etc/passwd")
    assert found.error_code is ErrorCode.SERVER_MISCONFIGURED
    assert f"servers.lost.sandbox.read: {place}/absent does not exist; create it" in found.content


def test_a_link_in_a_folder_of_the_server_leads_nowhere(worker: Worker, place: Path) -> None:
    found = attempt("linked.read", place / ".ssh" / "id_ed25519")
    assert found.error_code is ErrorCode.SERVER_MISCONFIGURED
    assert f"servers.linked.sandbox.read: {place}/own/link leads to {place}/.ssh" in found.content


def test_a_required_sandbox_is_complete_or_refused(worker: Worker) -> None:
    found = attempt("complete.read", "/etc/passwd")
    if isinstance(worker, PoorerWorker):
        assert found.error_code is ErrorCode.SERVER_MISCONFIGURED, found.content
        assert "it is required, but incomplete on this machine: other processes are visible" in found.content
        assert "allow unprivileged user namespaces" in found.content
        assert "the sandbox of MCP server `strict` is incomplete" in worker.log
    else:
        assert found.content.startswith("root:")
        assert attempt("complete.processes").content == "1 2"
        assert "incomplete" not in worker.log


def test_nothing_outlives_the_worker(worker: Worker, place: Path) -> None:
    """Nor does a daemon without parent, session, mark and environment. It is the last test: its worker is killed."""
    witness = place / "own" / "daemon"
    assert attempt("strict.detach", witness).content == "started"
    wait_until(witness.exists, "the daemon runs")
    inside = worker.children()
    assert any("os.setsid" in word for child in inside for word in read_command(child))
    worker.process.kill()
    worker.process.wait()
    wait_until(lambda: not any(map(is_alive, inside)), "no process is left")
    witness.unlink()


STARTS = """
import os, sys

def _note(event, arguments):
    if event == "subprocess.Popen":
        command, environment = arguments[1], os.environ if arguments[3] is None else arguments[3]
        with open("starts", "a") as file:
            print(*map(os.fsdecode, command), "TARSY_REDIS_URL" in environment, file=file)

sys.addaudithook(_note)
"""
"""Settings that note what a worker starts, and whether others of its user could read its secrets there."""


def test_a_worker_hides_its_memory_and_environment(place: Path, redis_url: str) -> None:
    servers = {"strict": {**SERVER, "sandbox": "strict"}}
    with PoorestWorker(place / "poorest", servers, redis_url, settings=STARTS) as worker:
        worker.wait_until_ready()
        with environment_of(worker):
            assert "Permission denied" in refused("strict.read", f"/proc/{worker.pid}/environ")
            assert "Permission denied" in refused("strict.memory", worker.pid)
            (dog,) = worker.find_children(watchdog.__file__)
            assert "REDIS" not in attempt("strict.read", f"/proc/{dog.pid}/environ").content
            (masking,) = [child for child in worker.children() if child.name() == process.NAME]
            assert "Permission denied" in refused("strict.read", f"/proc/{masking.pid}/environ")
            assert "Permission denied" in refused("strict.memory", masking.pid)
            assert attempt("strict.read", worker.config_path).content.startswith("{"), "files are open here"
        worker.stop()
    starts = (place / "poorest" / "starts").read_text().splitlines()
    for program in (watchdog.__file__, launcher.PROBE, "rm"):
        assert [start for start in starts if program in start.split()], program
    assert not [start for start in starts if start.endswith(" True")]

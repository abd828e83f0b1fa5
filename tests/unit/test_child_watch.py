"""Process trees and the watchdog, with real processes and without a worker."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tarsy_tasks.worker.transport.child_watch import ChildWatch, ProcessTree
from tarsy_tasks.worker.transport.watchdog import Group, read_stat
from tests.processes import wait_until

SLEEP = "import signal; signal.pause()"
DETACH = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc here")


@pytest.fixture
def watch() -> Iterator[ChildWatch]:
    watch = ChildWatch()
    yield watch
    watch.close()


@pytest.fixture
def leader() -> Iterator["subprocess.Popen[str]"]:
    """A process whose child has a session of its own; it prints the child's pid and ends with its stdin."""
    command = [sys.executable, "-c", DETACH]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield process
        process.kill()


def detached_child(leader: "subprocess.Popen[str]") -> psutil.Process:
    assert leader.stdout is not None
    return psutil.Process(int(leader.stdout.readline()))


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_known_detached_descendant_is_ended_without_its_parent(
    watch: ChildWatch, leader: "subprocess.Popen[str]"
) -> None:
    child = detached_child(leader)
    tree = ProcessTree(leader.pid, watch)
    tree.update()
    leader.kill()
    leader.wait()
    tree.update()
    tree.signal(signal.SIGKILL)
    wait_until(lambda: is_gone(child), "the child is gone", timeout_s=5)
    tree.release()


def test_the_end_of_the_pipe_ends_only_registered_groups(watch: ChildWatch, leader: "subprocess.Popen[str]") -> None:
    child = detached_child(leader)
    with subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True) as released:
        ProcessTree(leader.pid, watch)
        ProcessTree(released.pid, watch).release()
        watch.close()
        wait_until(lambda: is_gone(child), "the child is gone", timeout_s=5)
        assert leader.wait(5) == -signal.SIGTERM
        assert released.poll() is None
        released.kill()


def test_an_unregistered_child_is_found_by_the_mark(watch: ChildWatch) -> None:
    other = ChildWatch()
    own, foreign = (
        subprocess.Popen([sys.executable, "-I", "-S", "-c", SLEEP], env=each.mark({"A": "b"}), start_new_session=True)
        for each in (watch, other)
    )
    try:
        watch.close()
        assert own.wait(5) == -signal.SIGTERM
        assert foreign.poll() is None
    finally:
        other.close()
        for process in (own, foreign):
            process.kill()
            process.wait()


def test_a_watchdog_below_a_server_outlives_its_worker(watch: ChildWatch, tmp_path: Path) -> None:
    """And ends what it has to end, even if that worker is killed with the server."""
    program = f"""
import signal, subprocess, sys
from tarsy_tasks.worker.transport.child_watch import ChildWatch
signal.signal(signal.SIGTERM, signal.SIG_IGN)
watch = ChildWatch()
start = "subprocess.Popen([sys.executable, '-c', {SLEEP!r}], stdout=subprocess.DEVNULL, start_new_session=True)"
command = [sys.executable, "-c", f"import subprocess, sys; print({{start}}.pid)"]
daemon = subprocess.run(command, env=watch.mark({{}}), stdout=subprocess.PIPE, text=True)
print(daemon.stdout.strip(), flush=True)
signal.pause()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, env=watch.mark(os.environ), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as nested:
        assert nested.stdout is not None
        daemon = psutil.Process(int(nested.stdout.readline()))
        ProcessTree(nested.pid, watch).update()
        watch.close()
        assert nested.wait(5) == -signal.SIGKILL
    wait_until(lambda: is_gone(daemon), "the daemon is gone", timeout_s=5)


def test_a_group_whose_id_has_a_new_owner_is_left_alone(leader: "subprocess.Popen[str]") -> None:
    stat = read_stat(leader.pid)
    assert stat is not None
    stranger = Group(leader.pid, leader_started=str(int(stat[2]) - 1))
    assert not stranger.is_alive()
    stranger.signal(signal.SIGKILL)
    child = detached_child(leader)
    assert leader.poll() is None
    child.kill()
    assert Group.current(leader.pid).is_alive()


@pytest.mark.parametrize("number", [-1, 0, 1])
def test_what_the_system_takes_for_everybody_is_no_group(number: int) -> None:
    group = Group(number, leader_started=None)
    assert not group.is_alive()
    group.signal(signal.SIGTERM)


def test_a_name_with_parentheses_and_blanks_is_read_past(tmp_path: Path) -> None:
    program = tmp_path / "a) T 1 (b"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-I", "-S", "-c", SLEEP], start_new_session=True) as process:
        stat = wait_until(lambda: read_stat(process.pid), "it runs")
        process.kill()
    assert stat[1] == process.pid

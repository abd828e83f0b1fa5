"""Files of ours in places where others may write: what they put there is not used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tarsy_tasks.own_files import read_own_file, write_own_file
from tarsy_tasks.telemetry.probes import ProbeFiles
from tarsy_tasks.worker.reporting.audit_file import AuditFile


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of this user that others would like to see changed."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.fixture(params=["symbolic", "dangling", "hard", "pipe", "directory", "foreign"])
def trap(request: pytest.FixtureRequest, tmp_path: Path, victim: Path) -> Path:
    path = tmp_path / "trap"
    match request.param:
        case "symbolic":
            path.symlink_to(victim)
        case "dangling":
            path.symlink_to(tmp_path / "nothing")
        case "hard":
            path.hardlink_to(victim)
        case "pipe":
            os.mkfifo(path)
        case "foreign":
            path.touch(mode=0o400)
            if os.getuid() == 0:  # who may write all files
                os.chown(path, 1, 1)
        case _:
            path.mkdir()
    return path


def test_what_is_no_file_of_ours_is_not_written(trap: Path, victim: Path) -> None:
    with pytest.raises(OSError, match="trap"):
        write_own_file(trap, "7")
    with pytest.raises(OSError, match="trap"):
        AuditFile(trap).append("{}")
    assert victim.read_text() == "precious"
    assert not (victim.parent / "nothing").exists()


def test_a_file_of_ours_is_replaced(victim: Path) -> None:
    write_own_file(victim, "7")
    assert victim.read_text() == "7"
    assert read_own_file(victim, 10) == b"7"


def test_an_audit_file_that_becomes_a_link_is_left(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "audit"
    audit = AuditFile(path)
    audit.append("1")
    path.rename(tmp_path / "moved")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        audit.append("2")
    path.unlink()
    audit.append("3")
    assert path.read_text() == "2\n3\n"
    assert victim.read_text() == "precious"


def test_a_probe_does_not_read_through_a_link(tmp_path: Path, victim: Path) -> None:
    victim.write_text(str(os.getpid()))
    files = ProbeFiles(tmp_path, "worker@here", "d")
    files.ready.symlink_to(victim)
    assert not files.is_running
    write_own_file(files.sessions, str(os.getpid()))
    assert files.is_running


def test_a_run_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"tarsy-tasks-{os.getuid()}").symlink_to(elsewhere)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TARSY_RUN_DIR": ""}
    code = "from tarsy_tasks.run_dir import open_run_dir; open_run_dir()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "set TARSY_RUN_DIR to a directory of this user" in done.stderr

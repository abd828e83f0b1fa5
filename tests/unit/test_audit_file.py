"""The audit file: whole lines, also from many writers, and also when the file is moved or removed."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tarsy_tasks.worker.reporting.audit_file import AuditFile

APPENDER = """
import sys
from pathlib import Path
from tarsy_tasks.worker.reporting.audit_file import AuditFile
file = AuditFile(Path(sys.argv[1]))
for number in range(300):
    file.append(f"{sys.argv[2]} {number} " + "x" * 3000)
"""
TORN = """
import resource, sys
from pathlib import Path
from tarsy_tasks.worker.reporting.audit_file import AuditFile
file = AuditFile(Path(sys.argv[1]))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
file.append('{"line": 1}')
resource.setrlimit(resource.RLIMIT_FSIZE, (18, hard))
for _ in range(2):
    try:
        file.append('{"line": 2}')
    except OSError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
file.append('{"line": 3}')
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_threads_and_processes_append_whole_lines(path: Path) -> None:
    file = AuditFile(path)

    def append(name: str) -> None:
        for number in range(300):
            file.append(f"{name} {number} " + "x" * 3000)

    threads = [threading.Thread(target=append, args=[f"thread{number}"]) for number in range(4)]
    process = subprocess.Popen([sys.executable, "-c", APPENDER, str(path), "process"])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.wait(60) == 0
    lines = [line.split(" ") for line in path.read_text().splitlines()]
    assert all(len(line) == 3 and line[2] == "x" * 3000 for line in lines)
    names = {"process", *(f"thread{number}" for number in range(4))}
    assert {(name, int(number)) for name, number, _ in lines} == {(name, n) for name in names for n in range(300)}
    assert len(lines) == 1500
    file.close()


def test_a_rotated_file_is_opened_again(path: Path) -> None:
    file = AuditFile(path)
    file.append("first")
    path.rename(path.with_suffix(".1"))
    file.append("second")
    path.unlink()
    file.append("third")
    path.write_text("")  # copytruncate
    file.append("fourth")
    file.close()
    assert path.with_suffix(".1").read_text() == "first\n"
    assert path.read_text() == "fourth\n"
    assert path.stat().st_mode & 0o007 == 0, "nobody else reads it"


def test_what_could_not_be_written_is_written_when_it_can_be(path: Path) -> None:
    file = AuditFile(path)
    path.mkdir()
    for line in ("first", "second"):
        with pytest.raises(IsADirectoryError):
            file.append(line)
    with pytest.raises(IsADirectoryError):
        file.check()
    path.rmdir()
    file.check()
    file.append("third")
    file.close()
    assert path.read_text() == "first\nsecond\nthird\n"


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "none" / "audit.jsonl")
    with pytest.raises(FileNotFoundError):
        file.check()
    with pytest.raises(IsADirectoryError):
        AuditFile(tmp_path).check()
    file.close()


def test_a_line_that_was_torn_spoils_no_other(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TORN, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    assert "the disk is full" in done.stdout
    whole = [json.loads(line)["line"] for line in path.read_text().splitlines() if line.endswith("}")]
    assert whole == [1, 2, 2, 3]

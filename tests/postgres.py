"""A PostgreSQL of a test's own, of the programs that Debian or the machine has."""

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.processes import free_port, wait_until

__all__ = ["running_postgres"]

_DEBIAN = Path("/usr/lib/postgresql")
_TIMEOUT_S = 60


@contextmanager
def running_postgres(directory: Path, user: str, password: str) -> Iterator[int]:
    """Its port on 127.0.0.1. Skips the test where there is none, or fails it under CI."""
    program = _find("postgres")
    # It refuses to run as root.
    account = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    data, secret = directory / "data", directory / "password"
    secret.write_text(password)
    for path in (directory, secret):
        shutil.chown(path, account)
    # pytest's folders are closed to all but their owner.
    for parent in (directory, *directory.parents):
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    options = ["-A", "scram-sha-256", "-U", user, f"--pwfile={secret}", "-E", "UTF8", "--locale=C", "-N"]
    run: Any = {"user": account, "cwd": directory, "capture_output": True, "text": True}
    done = subprocess.run([_find("initdb"), "-D", str(data), *options], timeout=_TIMEOUT_S, check=False, **run)
    assert done.returncode == 0, done.stderr
    port = free_port()
    settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(directory), "fsync": "off"}
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    log = directory / "postgres.log"
    with log.open("wb") as out:
        command = [program, "-D", str(data), "-p", str(port), *words]
        process = subprocess.Popen(command, user=account, cwd=directory, stdout=out, stderr=out)
    try:
        wait_until(lambda: "ready to accept connections" in log.read_text(errors="replace"), "it starts", _TIMEOUT_S)
        yield port
    finally:
        process.send_signal(signal.SIGINT)  # it does not wait for its clients
        process.wait(_TIMEOUT_S)


def _find(program: str) -> str:
    installed = sorted(_DEBIAN.glob(f"*/bin/{program}"), key=lambda path: path.parts[-3])
    found = str(installed[-1]) if installed else shutil.which(program)
    return found or _give_up(f"there is no {program} on this machine")


def _give_up(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)

"""The command `tarsy-tasks` as a process, for tests of what it prints and of its exit codes."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Any

from tests.forked import ForkedProcess, needs_new_interpreter

__all__ = ["TARSY_TASKS", "clean_environment", "run_command", "run_forked"]

TARSY_TASKS = str(Path(sys.executable).parent / "tarsy-tasks")
STARTS_PROCESSES = ("demo", "up", "flower")
"""They start others, as users do."""
TIMEOUT_S = 60


def clean_environment(**added: str) -> dict[str, str]:
    """This process's environment without variables of ours, and with those added."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("TARSY_")}, **added}


def run_command(*words: str, environment: Mapping[str, str], cwd: Path | None = None) -> CompletedProcess[str]:
    """Run it to its end, without a terminal; a traceback fails the test."""
    if words[0] in STARTS_PROCESSES or needs_new_interpreter(environment):
        command = [TARSY_TASKS, *words]
        options: Any = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": TIMEOUT_S}
        done = subprocess.run(command, env=environment, cwd=cwd, **options)
    else:
        done = run_forked([TARSY_TASKS, *words], environment, cwd or Path.cwd())
    assert "Traceback" not in done.stderr, done.stderr
    return done


def run_forked(command: list[str], environment: Mapping[str, str], cwd: Path) -> CompletedProcess[str]:
    """Run a Python program to its end, as `ForkedProcess` takes it."""
    with TemporaryDirectory() as name:
        out, errors = Path(name) / "out", Path(name) / "errors"
        process = ForkedProcess(command, out, environment, cwd, errors)
        try:
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
        return CompletedProcess(command, code, out.read_text(), errors.read_text())

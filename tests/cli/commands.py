"""The command `tarsy-tasks` as a process, for tests of what it prints and of its exit codes."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["TARSY_TASKS", "clean_environment", "run_command"]

TARSY_TASKS = str(Path(sys.executable).parent / "tarsy-tasks")


def clean_environment(**added: str) -> dict[str, str]:
    """This process's environment without variables of ours, and with those added."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("TARSY_")}, **added}


def run_command(*words: str, environment: dict[str, str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run it to its end; a traceback fails the test."""
    done = subprocess.run(
        [TARSY_TASKS, *words],
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done

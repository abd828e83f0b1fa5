"""A control command for a worker under test: `celery worker -I tests.cli.blocking_command`."""

from pathlib import Path
from threading import Event
from typing import Any

from celery.worker.control import Panel


def block_sessions(state: Any, file: str) -> dict[str, Any]:
    """Let the session loop do nothing else for as long as a file exists."""

    def block() -> None:
        while Path(file).exists():
            Event().wait(0.05)

    state.consumer.pool.loop.call_later(0, block)
    return {}


Panel.register(block_sessions, type="control", args=[("file", str)])

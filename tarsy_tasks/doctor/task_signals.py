"""Do modules that a worker imports connect functions to Celery's signals of tasks, which costs every call a thread?"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tarsy_tasks.celery_app import build_app
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.entry_point import load_celeryconfig
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.worker.process.task_signals import find_receivers

__all__ = ["check_task_signals"]

_CHECK = "task signals"
_DJANGO = "DJANGO_SETTINGS_MODULE"


def check_task_signals(directory: Path) -> Iterator[Finding]:
    """Import what a worker that starts in a directory imports, and name what is connected then."""
    try:
        settings = load_celeryconfig(directory)
    except ConfigError:
        return  # `check_settings_file` says so
    try:
        build_app(settings).loader.import_default_modules()
    except Exception as error:
        text = f"a module that workers import cannot be imported: {type(error).__name__}: {error}"
        yield Finding.error(_CHECK, text, "correct `imports` in celeryconfig.py, or the module")
    receivers = find_receivers()
    if os.environ.get(_DJANGO) and find_spec("django") is not None:
        # Celery connects them when a worker starts.
        for name in ("task_prerun", "task_postrun"):
            receivers.setdefault(name, []).append(f"celery.fixups.django.DjangoWorkerFixup.on_{name} (for {_DJANGO})")
    for name, found in receivers.items():
        yield Finding.warning(
            _CHECK,
            f"each call takes a thread and Celery's tracer, because {name} is connected to {', '.join(found)}",
            "do not connect functions to it in workers that call MCP servers; an interceptor costs no thread",
        )

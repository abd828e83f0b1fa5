"""`tarsy_tasks.app`, and what Celery's signals start in each process: worker, beat, Flower.

Owns the wiring. It is the only module that knows both halves, and it imports each one only in the process that needs
it. The application's settings are in `celery_app`.
"""

import importlib.util
import logging
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from celery import signals
from celery.exceptions import Reject

from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.errors import ConfigError

__all__ = ["load_celeryconfig"]

logger = logging.getLogger(__name__)


def load_celeryconfig(directory: Path) -> dict[str, Any]:
    """The settings of `celeryconfig.py` in a directory; none when there is no such file.

    Raises:
        ConfigError: The file is there and cannot be executed.
    """
    path = directory / "celeryconfig.py"
    if not path.is_file():
        return {}
    spec = importlib.util.spec_from_file_location("celeryconfig", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path}: cannot be executed: {type(error).__name__}: {error}. Fix or remove it.") from error
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and name.islower() and not isinstance(value, ModuleType)
    }


@signals.celeryd_init.connect
def _configure_worker(instance: Any, **_: Any) -> None:
    if isinstance(instance.app, TarsyApp):
        from tarsy_tasks.worker.masking_process import masking_process
        from tarsy_tasks.worker.process import control, startup
        from tarsy_tasks.worker.transport.sandbox.launcher import hide_memory

        hide_memory()
        vars(platform.uname())["processor"] = ""  # or Celery's banner runs `uname -p`, with all of the environment
        masking_process.start()  # hidden from its birth, and before there are other threads, connections or files
        control.register()
        startup.configure(instance)


@signals.celeryd_after_setup.connect
def _select_queues(instance: Any, **_: Any) -> None:
    if isinstance(instance.app, TarsyApp):
        from tarsy_tasks.worker import maskers
        from tarsy_tasks.worker.process import startup
        from tarsy_tasks.worker.reporting import log_masking

        maskers.add_broker_secrets(instance.app.conf)
        masker = maskers.build_common_masker(instance.app.mcp_config.enabled_servers.values())
        instance.app.log_masking = log_masking.mask_log(masker)
        startup.select_queues(instance)


@signals.worker_ready.connect
def _report(sender: Any, **_: Any) -> None:
    if isinstance(sender.app, TarsyApp):
        from tarsy_tasks.worker.reporting.lifecycle import Reporting

        context = sender.app.worker_context
        if context.reporting is None:
            reporting = context.reporting = Reporting(
                sender, context.alerts, context.metrics, context.audit, context.server_lines
            )

            def stopping(**_: Any) -> None:
                reporting.worker_stopping()

            def ended(**_: Any) -> None:
                reporting.close()

            signals.worker_shutting_down.connect(stopping, weak=False)
            signals.worker_shutdown.connect(ended, weak=False)
        context.reporting.worker_ready(sender)


@signals.beat_init.connect
def _mask_log_of_beat(sender: Any, **_: Any) -> None:
    if isinstance(sender.app, TarsyApp):
        _mask_log(sender.app)


def _mask_log(app: TarsyApp) -> None:
    """In a process that calls no server."""
    from tarsy_tasks.worker import maskers
    from tarsy_tasks.worker.reporting import log_masking

    maskers.add_broker_secrets(app.conf)
    log_masking.mask_log(maskers.build_masker())


@signals.import_modules.connect
def _serve_metrics(sender: Any, **_: Any) -> None:
    """Flower loads modules like this too: it is a command of Celery's command line."""
    context = click.get_current_context(silent=True)
    if isinstance(sender, TarsyApp) and context is not None and context.info_name == "flower":
        from tarsy_tasks.dashboard import metrics

        _mask_log(sender)
        metrics.serve_metrics(sender)
        if "tarsy_tasks.dashboard.installation" not in sys.modules:
            logger.warning("this Flower has no MCP pages; start it with `tarsy-tasks flower` to get them")


@signals.after_setup_logger.connect
def _log_one_line_a_call(**_: Any) -> None:
    """One log line per call, when it ends; a second one on its arrival would double the cost."""
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    logging.getLogger("celery.app.trace").addFilter(_drop_traceback_of_requeue)


def _drop_traceback_of_requeue(record: logging.LogRecord) -> bool:
    """A message that goes back to its queue, as when the worker stops: Celery adds where that was raised."""
    if record.exc_info and isinstance(record.exc_info[1], Reject):
        record.exc_info = None
    return True


def __getattr__(name: str) -> Any:
    """`app`, built on first use: importing other names from here builds no application."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = build_app(load_celeryconfig(Path.cwd()))
    globals()["app"] = app
    if "celery.worker.control" in sys.modules:
        # Celery's command line sends only control commands that it knows.
        from tarsy_tasks.worker.process import control

        control.register()
    return app

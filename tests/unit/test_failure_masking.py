"""What a task fails of, and whatever a worker logs, tells no secret."""

import json
import subprocess
import sys
import traceback
from contextlib import closing
from pathlib import Path

import pytest
from celery.exceptions import Ignore, Reject

from tarsy_tasks.celery_app import build_app
from tarsy_tasks.config import load_config
from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.worker.calls.tasks import ServerTask

SECRET = "hunter2hunter2"
LOGS = f"""
import logging
from tarsy_tasks.worker.reporting.log_masking import mask_log
from tarsy_tasks.worker.maskers import build_masker

handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("%(message)s %(data)s", defaults={{"data": ""}}))
logging.basicConfig(level=logging.INFO, handlers=[handler])
task_logger = logging.getLogger("celery.task")
task_logger.propagate = False
task_logger.addHandler(logging.StreamHandler())
mask_log(build_masker())
logging.info("connecting with password: %s", "{SECRET}")
try:
    raise ValueError("password: {SECRET}")
except ValueError:
    logging.exception("it failed")
logging.warning("at", stack_info=True)
logging.warning("%d items", "password: {SECRET}")
from celery.utils.log import get_task_logger
get_task_logger("tasks").warning("password: %s", "{SECRET}")
logging.error("task failed", extra={{"data": {{"exc": "password: {SECRET}", "runtime": 1.5}}}})
"""


def failing_task(config: Path, error: Exception) -> Exception:
    """What leaves a task that fails with this error, and with a context that contains a secret."""

    class Failing(ServerTask):
        def run(self) -> None:
            try:
                {}[f"password: {SECRET}"]
            except KeyError:
                raise error  # noqa: B904

    with closing(build_app()) as app:
        app.mcp_config = load_config(config)
        task = Failing()
        task.bind(app)
        with pytest.raises(RuntimeError) as found:
            task()
    return found.value


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"a": {"command": "x", "masking": {"patterns": ["door-code \\S+"]}}}}))
    return path


def test_a_failure_with_a_secret_is_replaced(config: Path) -> None:
    found = failing_task(config, ValueError(f"cannot log in, password: {SECRET}"))
    assert repr(found) == repr(RuntimeError(f"ValueError: cannot log in, password: {MASK}"))
    assert SECRET not in "".join(traceback.format_exception(found))
    assert (found.__cause__, found.__context__) == (None, None)


def test_a_failure_whose_cause_has_a_secret_is_replaced_too(config: Path) -> None:
    found = failing_task(config, ValueError("innocent"))
    assert repr(found) == repr(RuntimeError("ValueError: innocent"))
    assert SECRET not in "".join(traceback.format_exception(found))


def test_the_patterns_of_a_server_are_masked_in_failures(config: Path) -> None:
    found = failing_task(config, ValueError("the door-code 4711 is wrong"))
    assert repr(found) == repr(RuntimeError(f"ValueError: the {MASK} is wrong"))


def test_other_failures_and_signals_to_celery_pass(config: Path) -> None:
    class Raising(ServerTask):
        def run(self, error: Exception) -> None:
            raise error

    with closing(build_app()) as app:
        app.mcp_config = load_config(config)
        task = Raising()
        task.bind(app)
        for error in (LookupError("no such thing"), Ignore(), Reject(f"password: {SECRET}", requeue=True)):
            with pytest.raises(type(error)) as found:
                task(error)
            assert found.value is error


def test_no_logger_writes_a_secret_to_the_log_of_a_worker(tmp_path: Path) -> None:
    (tmp_path / "logs.py").write_text(LOGS)  # a traceback shows its lines
    done = subprocess.run([sys.executable, tmp_path / "logs.py"], capture_output=True, text=True, check=True)
    assert SECRET not in done.stderr
    for shown in ("connecting with password", "it failed", "ValueError", "task failed", "'runtime': 1.5", "%d items"):
        assert shown in done.stderr
    assert done.stderr.count(MASK) == 5


BEAT = "from celery.signals import beat_init; from celery.beat import Service; beat_init.send(sender=Service(app))"
FLOWER = """
import click
from celery.signals import import_modules
with click.Context(click.Command("flower"), info_name="flower"):
    import_modules.send(sender=app)
"""


@pytest.mark.parametrize("begin", [BEAT, FLOWER], ids=["beat", "Flower"])
def test_the_logs_of_beat_and_flower_have_no_secret_either(begin: str, tmp_path: Path) -> None:
    code = "import logging; from tarsy_tasks import app; logging.basicConfig()"
    log = f"logging.warning('connecting with password: {SECRET}')"
    command = [sys.executable, "-c", f"{code}\n{begin}\n{log}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert f"connecting with password: {MASK}" in done.stderr
    assert SECRET not in done.stderr

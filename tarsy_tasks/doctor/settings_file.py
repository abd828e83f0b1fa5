"""`celeryconfig.py`: does it change what must not be changed?"""

import ast
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from celery.app import defaults as celery_defaults

from tarsy_tasks.celery_app import DEFAULTS
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.entry_point import load_celeryconfig
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.settings import load_settings

__all__ = ["check_settings_file"]

_CELERY_DEFAULTS: dict[str, Any] = celery_defaults.DEFAULTS
_FILE = "celeryconfig.py"
_CODE = "only JSON is data for certain: with anything else, a message can run code in the workers"
_MUST_STAY: dict[str, str] = {
    "worker_pool": "any other pool is refused: only ours holds MCP sessions",
    "include": "workers would not know the tasks; name further modules in `imports`",
    "task_routes": "calls would not reach the queues of their servers",
    "broker_transport": "it mends defects of the stock one that lose calls",
    "beat_scheduler": "nobody would have the servers checked",
    "task_serializer": _CODE,
    "result_serializer": _CODE,
    "accept_content": _CODE,
    "result_accept_content": _CODE,
    "task_acks_late": "calls of a worker that dies would be lost",
    "worker_cancel_long_running_tasks_on_connection_loss": "calls would end whenever Redis is away for a moment",
    "task_always_eager": "calls would run in the agent, which has no sessions",
    "task_ignore_result": "no call would ever get an answer",
}
_BETTER_STAYS: dict[str, str] = {
    "worker_disable_prefetch": "calls would wait behind others while workers are idle",
    "worker_prefetch_multiplier": "calls would wait behind others while workers are idle",
    "result_backend_thread_safe": "every thread would open connections of its own",
    "worker_enable_remote_control": "neither `inspect` nor `control` nor Flower would reach the workers",
}
_SHORTEST_EXPIRY_S = 60


def check_settings_file(directory: Path) -> Iterator[Finding]:
    """Look at the file of a directory."""
    path = directory / _FILE
    try:
        settings = load_celeryconfig(directory)
    except ConfigError as error:
        yield Finding.error(_FILE, str(error), "mend or remove it")
        return
    if not path.is_file():
        yield Finding.ok(_FILE, "there is none, so the package's defaults hold")
        return
    findings = [*_check_overrides(settings), *_check_redis(settings), *_check_names(path, settings)]
    yield from findings or [Finding.ok(_FILE, f"{path}: {len(settings)} settings")]


def _check_overrides(settings: dict[str, Any]) -> Iterator[Finding]:
    for name, value in settings.items():
        default = DEFAULTS.get(name, _CELERY_DEFAULTS.get(name))
        if value == default:
            continue
        if name in _MUST_STAY:
            yield Finding.error(_FILE, f"{name} is changed: {_MUST_STAY[name]}", f"remove {name}")
        elif name in _BETTER_STAYS:
            yield Finding.warning(_FILE, f"{name} is changed: {_BETTER_STAYS[name]}", f"remove {name}")
    expires = settings.get("result_expires")
    if isinstance(expires, int | float) and 0 < expires < _SHORTEST_EXPIRY_S:
        yield Finding.warning(
            _FILE,
            f"result_expires is {expires} s: an answer may be gone before its agent has read it",
            f"set {_SHORTEST_EXPIRY_S} or more",
        )


def _check_redis(settings: dict[str, Any]) -> Iterator[Finding]:
    for name in ("broker_url", "result_backend"):
        if name in settings and settings[name] != load_settings().redis_url.get_secret_value():
            yield Finding.error(
                _FILE,
                f"{name} is not what TARSY_REDIS_URL says; agents do not read this file and would send their calls "
                "elsewhere",
                f"remove {name}, and set TARSY_REDIS_URL everywhere",
            )


def _check_names(path: Path, settings: dict[str, Any]) -> Iterator[Finding]:
    for name in settings:
        # Whatever is like no setting may be a variable of the file's own.
        close = get_close_matches(name, _CELERY_DEFAULTS, n=1, cutoff=0.8) if name not in _CELERY_DEFAULTS else []
        if close:
            yield Finding.warning(_FILE, f"{name} is no setting of Celery", f"did you mean {close[0]}?")
    old: list[str] = []
    with suppress(SyntaxError, OSError):
        for node in ast.parse(path.read_bytes()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            old += [each.id for each in targets if isinstance(each, ast.Name) and each.id.isupper()]
    old = [name for name in old if name.startswith(("CELERY", "BROKER"))]
    if old:
        yield Finding.warning(
            _FILE, f"{', '.join(old)}: settings in capitals are ignored", "write them in Celery's lower-case names"
        )

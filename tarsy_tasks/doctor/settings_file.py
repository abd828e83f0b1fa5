"""`celeryconfig.py`: does it change a setting that must stay?"""

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
_CODE = "only JSON is safe: in another format, a message can run code in the workers"
_REQUIRED: dict[str, str] = {
    "worker_pool": "other pools are refused: only this one runs MCP sessions",
    "include": "workers would not know the tasks; name further modules in `imports`",
    "task_routes": "calls would not reach the queues of their servers",
    "broker_transport": "the stock transport has defects that lose calls",
    "beat_scheduler": "no health checks would be sent",
    "task_serializer": _CODE,
    "result_serializer": _CODE,
    "accept_content": _CODE,
    "result_accept_content": _CODE,
    "task_acks_late": "calls of a lost worker would be lost too",
    "worker_cancel_long_running_tasks_on_connection_loss": "calls would be cancelled at every short outage of Redis",
    "task_always_eager": "calls would run in the agent, which has no sessions",
    "task_ignore_result": "no call would return an answer",
}
_RECOMMENDED: dict[str, str] = {
    "worker_disable_prefetch": "calls would wait behind others while workers are idle",
    "worker_prefetch_multiplier": "calls would wait behind others while workers are idle",
    "result_backend_thread_safe": "each thread would open its own connections",
    "worker_enable_remote_control": "`inspect`, `control` and Flower would not reach the workers",
}
_SHORTEST_EXPIRY_S = 60


def check_settings_file(directory: Path) -> Iterator[Finding]:
    """Check the file in a directory."""
    path = directory / _FILE
    try:
        settings = load_celeryconfig(directory)
    except ConfigError as error:
        yield Finding.error(_FILE, str(error), "fix or remove it")
        return
    if not path.is_file():
        yield Finding.ok(_FILE, "there is none, so the package's defaults apply")
        return
    findings = [*_check_overrides(settings), *_check_redis(settings), *_check_names(path, settings)]
    yield from findings or [Finding.ok(_FILE, f"{path}: {len(settings)} settings")]


def _check_overrides(settings: dict[str, Any]) -> Iterator[Finding]:
    for name, value in settings.items():
        default = DEFAULTS.get(name, _CELERY_DEFAULTS.get(name))
        if value == default:
            continue
        if name in _REQUIRED:
            yield Finding.error(_FILE, f"{name} is changed: {_REQUIRED[name]}", f"remove {name}")
        elif name in _RECOMMENDED:
            yield Finding.warning(_FILE, f"{name} is changed: {_RECOMMENDED[name]}", f"remove {name}")
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
                f"{name} differs from TARSY_REDIS_URL: agents do not read this file and would send calls elsewhere",
                f"remove {name}, and set TARSY_REDIS_URL everywhere",
            )


def _check_names(path: Path, settings: dict[str, Any]) -> Iterator[Finding]:
    for name in settings:
        # A name that resembles no setting may be a variable of the file.
        close = get_close_matches(name, _CELERY_DEFAULTS, n=1, cutoff=0.8) if name not in _CELERY_DEFAULTS else []
        if close:
            yield Finding.warning(_FILE, f"{name} is not a Celery setting", f"did you mean {close[0]}?")
    old: list[str] = []
    with suppress(SyntaxError, OSError):
        for node in ast.parse(path.read_bytes()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            old += [name for name in names if name.isupper() and name.startswith(("CELERY", "BROKER"))]
    if old:
        text = f"{', '.join(old)}: settings in capitals are ignored"
        yield Finding.warning(_FILE, text, "use Celery's lower-case names")

"""What a task failed of carries no secret.

Owns the masking of exceptions that leave a task: Celery stores them with their tracebacks, logs them and sends them in
events. Failures of calls are no exceptions, and are masked as the results that they are.
"""

import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any

from celery import current_app
from celery.exceptions import Ignore, Reject, TimeLimitExceeded

from tarsy_tasks.celery_app import TarsyApp
from tarsy_tasks.worker.maskers import Masker, build_common_masker, build_masker

__all__ = ["masked_failures"]

_SIGNALS = (Ignore, Reject, TimeLimitExceeded)
"""What says something to Celery, and nothing of anybody else's."""


def masked_failures(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Let a task's function raise nothing that names a secret, neither in the exception nor in those that led to it."""

    @wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except _SIGNALS:
            raise
        except Exception as error:
            masker = _build_masker()
            told = "".join(traceback.format_exception(error))
            if masker.mask(told) == told:
                raise
            masked = RuntimeError(f"{type(error).__name__}: {masker.mask(str(error))}")
        raise masked.with_traceback(None) from None

    return run


def _build_masker() -> Masker:
    """By what any server has masked: a task may fail before it is known whose it is."""
    if not isinstance(current_app, TarsyApp):
        return build_masker()
    return build_common_masker(current_app.mcp_config.enabled_servers.values())

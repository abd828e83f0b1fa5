"""The worker's view of a message: what of it events and logs may show, and how a shutdown ends it.

Owns two overrides of Celery's `Request`; everything else is stock.
"""

from typing import Any

from celery.worker.request import Request

__all__ = ["CallRequest"]

_SHOWN_LIMIT = 200


class CallRequest(Request):
    """Shows the tool's name in place of its arguments, whatever the producer wrote, and cancels without a retry."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shown = ".".join(word for word in list(self._args)[:2] if isinstance(word, str))[:_SHOWN_LIMIT]
        self._argsrepr = self._request_dict["argsrepr"] = shown
        self._kwargsrepr = self._request_dict["kwargsrepr"] = "{}"

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:  # noqa: ARG002
        """Called by a shutdown for what runs. Stock stores RETRY, and so loses the answer that the job still gives."""
        job = self._apply_result() if self._apply_result is not None else None
        if job is not None:
            job.stop()

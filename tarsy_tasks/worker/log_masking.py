"""The worker's log carries no secret, whoever writes to it.

Owns the filter on the log's handlers. The SDK quotes what it could not parse, our own modules quote why a server is
unavailable, Celery quotes the names that a caller made up, and a traceback quotes its exception. It knows no patterns;
`masking` does.
"""

import logging
from typing import Any, cast

from tarsy_tasks.worker.masking import Masker

__all__ = ["mask_log"]

_QUIET = ("httpx2", "mcp")
"""They report every request at INFO, with URLs and session ids, which may be credentials."""
_FORMATTER = logging.Formatter()


def mask_log(masker: Masker) -> None:
    """Mask what passes the root logger's handlers. Call it once, when logging is set up."""
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_MaskingFilter(masker))


class _MaskingFilter(logging.Filter):
    def __init__(self, masker: Masker) -> None:
        super().__init__()
        self._masker = masker

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        masked = self._masker.mask(message)
        if masked != message:
            record.msg, record.args = masked, ()
        if record.exc_info or record.exc_text:
            told = record.exc_text or _FORMATTER.formatException(cast("Any", record.exc_info))
            record.exc_text = self._masker.mask(told)
            if record.exc_text != told:
                record.exc_info = None
        if record.stack_info:
            record.stack_info = self._masker.mask(record.stack_info)
        if record.levelno > logging.INFO and isinstance(data := getattr(record, "data", None), dict):
            # What Celery adds for a task that failed; formatters that write every attribute write this, too.
            texts = cast("dict[str, Any]", data)
            vars(record)["data"] = {
                key: self._masker.mask(text) if isinstance(text, str) else text for key, text in texts.items()
            }
        return True

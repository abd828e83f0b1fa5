"""Keeps secrets and terminal control characters out of the logs of workers, beat and Flower.

Owns the filter on the log's handlers. The SDK quotes what it could not parse, our own modules quote why a server is
unavailable, Celery quotes names from messages, and a traceback quotes its exception. The patterns are in `masking`.
"""

import logging
from typing import Any, cast

from tarsy_tasks.masking.masked_text import MaskedText
from tarsy_tasks.telemetry.printable import make_visible
from tarsy_tasks.worker.maskers import Masker

__all__ = ["LogMasking", "mask_log"]

_QUIET = ("httpx2", "mcp")
"""They log every request at INFO, with URLs and session ids, which may be credentials."""
_FORMATTER = logging.Formatter()
_BREAKS = "\n\t"


def mask_log(masker: Masker) -> "LogMasking":
    """Mask what passes the handlers of all loggers; Celery's task logger has its own. Call it once, when logging is set
    up.

    Returns:
        The filter, whose masker can be replaced.
    """
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    masking = LogMasking(masker)
    for logger in (logging.getLogger(), *logging.getLogger().manager.loggerDict.values()):
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            handler.addFilter(masking)
    return masking


class LogMasking(logging.Filter):
    """Masks the records of a log.

    Attributes:
        masker: What it masks with; another one may be set at any time.
    """

    def __init__(self, masker: Masker) -> None:
        super().__init__()
        self.masker = masker

    def filter(self, record: logging.LogRecord) -> bool:
        # Celery logs one line per call, of names, numbers and our own short form of the result.
        is_line = record.levelno <= logging.INFO and record.name.startswith("celery.")
        message = record.msg if isinstance(record.msg, MaskedText) and not record.args else _message_of(record)
        record.msg, record.args = self._shown(message, keep="" if is_line else _BREAKS), ()
        if record.exc_info or record.exc_text:
            text = record.exc_text or _FORMATTER.formatException(cast("Any", record.exc_info))
            record.exc_text, record.exc_info = self._shown(text), None
        if record.stack_info:
            record.stack_info = self._shown(record.stack_info)
        if record.levelno > logging.INFO and isinstance(data := getattr(record, "data", None), dict):
            # Celery adds it for a failed task, and some formatters write every attribute.
            texts = cast("dict[str, Any]", data)
            vars(record)["data"] = {
                key: self._shown(text) if isinstance(text, str) else text for key, text in texts.items()
            }
        return True

    def _shown(self, text: str, keep: str = _BREAKS) -> MaskedText:
        # The mark lasts, for each handler has this filter.
        return MaskedText(make_visible(self.masker.mask(text), keep=keep))


def _message_of(record: logging.LogRecord) -> str:
    """The formatted message. An error in a handler is reported and ignored, one in a filter is raised to the caller."""
    try:
        return record.getMessage()
    except Exception as error:
        return f"{record.msg} [arguments not shown: {type(error).__name__}]"

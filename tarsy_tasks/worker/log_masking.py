"""The worker's log carries no secret, and nothing that a terminal would obey, whoever writes to it.

Owns the filter on the log's handlers. The SDK quotes what it could not parse, our own modules quote why a server is
unavailable, and a traceback quotes its exception: all of that is a server's words. It knows no patterns; `masking`
does.
"""

import logging

from tarsy_tasks.hidden_characters import make_visible
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
        if record.levelno <= logging.INFO and record.name.startswith("celery."):
            # One line a call, of names, numbers and our own short form of the result: nothing that is not masked yet.
            record.msg, record.args = make_visible(record.getMessage()), ()
            return True
        record.msg, record.args = self._shown(record.getMessage()), ()
        if record.exc_info:
            record.exc_text = self._shown(_FORMATTER.formatException(record.exc_info))
            record.exc_info = None
        return True

    def _shown(self, text: str) -> str:
        return make_visible(self._masker.mask(text), keep="\n\t")

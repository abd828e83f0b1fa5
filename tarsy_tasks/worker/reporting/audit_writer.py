"""The audit as this worker writes it: one entry for every call that ends here.

Owns where entries go, the stream in Redis and a file, and what happens when they cannot be written: that is said once
an outage and counted, and with `TARSY_AUDIT_REQUIRED` no call begins. The stream gets an entry in the step that ends
its call (`broker.deliveries`), so that neither is there without the other; the file gets its line afterwards. What an
entry says, `trail` knows.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial, wraps
from threading import Lock
from typing import Any

from celery.exceptions import Ignore, Reject

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.broker.deliveries import Delivery, Entry
from tarsy_tasks.broker.messages import CallMessage, DamagedMessage, read_entry
from tarsy_tasks.broker.task_names import CALL_TOOL
from tarsy_tasks.errors import CallError
from tarsy_tasks.models import ToolResult
from tarsy_tasks.settings import Settings
from tarsy_tasks.telemetry.audit import AuditEntry
from tarsy_tasks.telemetry.metrics import NO_TOOL
from tarsy_tasks.worker.maskers import Masker, build_masker
from tarsy_tasks.worker.reporting.audit_file import AuditFile
from tarsy_tasks.worker.reporting.call_metrics import call_metrics
from tarsy_tasks.worker.reporting.call_record import CallRecord

__all__ = ["Audit", "audit", "audited"]

logger = logging.getLogger(__name__)

_NAMES_KEPT = 4096
_NAME_LIMIT = 4096


class Audit:
    """What one worker process tells the audit; off until it is opened. Safe to share between threads.

    Attributes:
        worker: Node name of this worker.
        is_required: No call may begin that cannot be written down.
    """

    def __init__(self) -> None:
        self.worker = ""
        self._masker = build_masker()
        self._cached_name = lru_cache(_NAMES_KEPT)(self.mask)
        self.is_required = False
        self._limit = 0
        self._file: AuditFile | None = None
        self._clock = RedisClock()
        self._maskers: Mapping[str, Masker] = {}
        self._stream_outage = _Outage("entries for the audit are not taken by Redis")
        self._file_outage = _Outage("entries for the audit cannot be written to its file")

    def open(self, worker: str, maskers: Mapping[str, Masker], settings: Settings, clock: RedisClock) -> None:
        """Begin to write.

        Args:
            worker: Node name of the worker.
            maskers: Of the servers that it serves, by id.
            clock: That of Redis, which somebody else keeps right.
        """
        self.worker, self._maskers, self._clock = worker, maskers, clock
        self.is_required = settings.audit_required
        self._limit = settings.audit_entries
        if settings.audit_file is not None:
            self._file = AuditFile(settings.audit_file)
            self._is_done(self._file.check)

    def close(self) -> None:
        """The worker has ended."""
        if self._file is not None:
            self._file.close()

    @property
    def is_stream_required(self) -> bool:
        """No call may begin whose entry the stream would not take."""
        return self.is_required and bool(self._limit)

    def may_begin(self) -> bool:
        """Whether the file can take the entry of a call that begins now, or need not."""
        return not self.is_required or self._file is None or self._is_done(self._file.check)

    def note_refusal(self, trouble: str) -> None:
        """The stream takes no entries, so a call does not begin."""
        self._stream_outage.note(trouble)

    def trail(self, task_id: str, message: CallMessage, queue: str = "") -> CallRecord | None:
        """For a call that came from a queue; None while nothing is written."""
        if not self._limit and self._file is None:
            return None
        return CallRecord(self, task_id, message, keys.server_of_queue(queue) or "")

    def trail_of(self, request: Any) -> CallRecord:
        """What is known of the call that a task is run for. Of one that no message brought, nobody will ask."""
        delivery: Delivery | None = getattr(request, "delivery", None)
        found = delivery.trail if delivery is not None else None
        return found if isinstance(found, CallRecord) else CallRecord(self, "", CallMessage((), {}))

    def audit_entry_of(self, tag: str, books: bytes, failure: Callable[[str], CallError]) -> Entry | None:
        """The entry of a call that comes to no worker any more; None for what is no call.

        Args:
            tag: Its id.
            books: What lies of it in Redis.
            failure: What it ended with, given its name in words.
        """
        queue, message = books.partition(b"\n")[0].decode(errors="replace"), CallMessage((), {})
        try:
            found = read_entry(books)
        except DamagedMessage:
            pass  # it may have been a call
        else:
            if found.task != CALL_TOOL:
                return None
            message = found.call
        trail = self.trail(tag, message, queue)
        if trail is None:
            return None
        trail.failure = failure(trail.what)
        return trail.entry()

    def build_entry(self, entry: AuditEntry) -> Entry:
        """For the step that ends a call."""
        text = entry.encode()
        return Entry(text if self._limit else "", self._limit, partial(self._note_end, entry.server, text))

    def _note_end(self, server: str, text: str, trouble: str) -> None:
        """It was this step that ended the call, and the stream took the entry or did not."""
        if trouble:
            self._stream_outage.note(trouble)
        elif self._limit:
            self._stream_outage.end()
        is_written = not trouble
        if self._file is not None:
            is_written &= self._is_done(partial(self._file.append, text))
        if not is_written and server in self._maskers:
            call_metrics.add(server, NO_TOOL, {"unaudited": 1})

    def _is_done(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            self._file_outage.note(str(error))
            return False
        self._file_outage.end()
        return True

    def time_of(self, monotonic_s: float) -> float:
        """When that was, in seconds since the epoch; by the clock of Redis once that is known."""
        try:
            return round(self._clock.at(monotonic_s), 6)
        except RuntimeError:
            return round(time.time() - time.monotonic() + monotonic_s, 6)

    def mask_name(self, text: str, server: str = "") -> str:
        """As `mask`, for names and the like, most of which come again; whoever cuts them does so afterwards."""
        return self._cached_name(text[:_NAME_LIMIT], server)

    def mask(self, text: str, server: str = "") -> str:
        """A text that somebody else has written, as it may be stored.

        Args:
            server: Id of the server that it is about.
        """
        # Half a character can be neither stored nor shown.
        return self._maskers.get(server, self._masker).mask(text).encode("utf-8", "replace").decode()


class _Outage:
    """Says once that something fails, and once that it is well again."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = Lock()
        self._count = 0

    def note(self, why: str) -> None:
        with self._lock:
            self._count += 1
            is_first = self._count == 1
        if is_first:
            logger.error("%s: %s", self._what, why)

    def end(self) -> None:
        if not self._count:
            return
        with self._lock:
            count, self._count = self._count, 0
        if count:
            logger.warning("no more, after %d times: %s", count, self._what)


audit = Audit()
"""What this worker process writes."""


def audited(call_tool: Callable[..., ToolResult]) -> Callable[..., ToolResult]:
    """Note how the task `tarsy.call_tool` goes, which this wraps."""

    @wraps(call_tool)
    def auditing(self: Any, *args: Any, **kwargs: Any) -> ToolResult:
        trail = audit.trail_of(self.request)
        trail.picked_up_at = time.monotonic()
        try:
            trail.result = call_tool(self, *args, **kwargs)
        except (Ignore, Reject):
            raise
        except Exception as error:
            trail.fail(error)
            raise
        return trail.result

    return auditing

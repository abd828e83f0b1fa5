"""The audit as this worker writes it: one entry for every call that ends here.

Owns where entries go, the stream in Redis and a file, and what happens when they cannot be written: that is logged once
per outage and counted, and with `TARSY_AUDIT_REQUIRED` no call begins. The stream gets an entry in the script that ends
its call (`broker.deliveries`), so that neither is there without the other; the file gets its line afterwards.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.begun import Begun
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.broker.delivery import AuditWrite, Delivery
from tarsy_tasks.broker.messages import CallMessage, DamagedMessage, read_entry
from tarsy_tasks.broker.principals import principal_of
from tarsy_tasks.broker.priority_lists import priority_of_list
from tarsy_tasks.broker.task_names import CALLS
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import ANONYMOUS
from tarsy_tasks.methods import TOOL_CALL
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.priorities import NORMAL
from tarsy_tasks.settings import Settings
from tarsy_tasks.telemetry.audit import LATEST_S, AuditEntry, StepName, build_canonical, build_digest
from tarsy_tasks.telemetry.metrics import NO_TOOL
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.telemetry.shown_arguments import build_shown
from tarsy_tasks.worker.maskers import Masker, build_masker
from tarsy_tasks.worker.reporting.audit_file import AuditFile
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tarsy_tasks.worker.reporting.call_record import CallRecord, Observer

__all__ = ["Audit"]

logger = logging.getLogger(__name__)

_NAMES_KEPT = 4096
_NAME_LIMIT = 4096
_NAME_CHARS = 200
_ERROR_CHARS = 500
_MASKED_CHARS = 16 * 1024
"""Cut only after masking: half a secret would not be recognized."""
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Audit:
    """The audit of one worker process. Safe to share between threads.

    Args:
        maskers: Of all configured servers, by id.
        clock: That of Redis; the owner keeps it right.
        metrics: Counts the entries that could not be written.
        is_bound: Agents are bound, so a queue says who sent what is in it.

    Attributes:
        is_required: No call may begin whose entry cannot be written.
        is_stream_required: No call may begin whose entry the stream would not take.
    """

    def __init__(
        self,
        worker: str,
        maskers: Mapping[str, Masker],
        settings: Settings,
        clock: RedisClock,
        metrics: CallMetrics,
        observers: Sequence[Observer] = (),
        *,
        is_bound: bool = False,
    ) -> None:
        self.is_required = settings.audit_required
        self._limit = settings.audit_entries
        self.is_stream_required = self.is_required and bool(self._limit)
        self._file = AuditFile(settings.audit_file) if settings.audit_file is not None else None
        self._worker = worker
        self._maskers = maskers
        self._masker = build_masker()
        self._cached_name = lru_cache(_NAMES_KEPT)(self.mask)
        self._clock = clock
        self._metrics = metrics
        self._observers = observers
        self._is_bound = is_bound
        self._stream_outage = OutageLog(logger, "audit entries cannot be written to Redis", logging.ERROR)
        self._file_outage = OutageLog(logger, "audit entries cannot be written to the audit file", logging.ERROR)
        if self._file is not None:
            self._is_done(self._file.check)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def may_begin(self) -> bool:
        """Whether the file can take the entry of a call that begins now, or need not."""
        return not self.is_required or self._file is None or self._is_done(self._file.check)

    def note_refusal(self, trouble: str) -> None:
        """The stream takes no entries, so a call does not begin."""
        self._stream_outage.failed(trouble)

    def open_record(self, task_id: str, message: CallMessage, delivery: Delivery | None = None) -> CallRecord:
        """The record of a call; `delivery` is that of its message, None for a call that no message brought."""
        if delivery is None:
            return CallRecord(self, task_id, message)
        queue = delivery.queue
        record = CallRecord(self, task_id, message, keys.server_of_queue(queue) or "", delivery.begun_before)
        record.priority = delivery.priority
        # Where agents are not bound, anybody can have a worker write into any queue.
        record.principal = principal_of(queue if self._is_bound else "", delivery.signer)
        return record

    def write_of(
        self, tag: str, entry: bytes, failure: Callable[[str], CallError], begun_before: Sequence[Begun] = ()
    ) -> AuditWrite | None:
        """The audit entry of a call that no worker will run any more; None if it is not a call.

        Args:
            tag: Its id.
            entry: Its entry in the in-flight table, or what is kept of it as a dead letter.
            failure: How it ended, given its name in words.
            begun_before: Who had begun it.
        """
        name, message = entry.partition(b"\n")[0].decode(errors="replace"), CallMessage((), {})
        try:
            found = read_entry(entry)
        except DamagedMessage:
            pass  # it may have been a call
        else:
            if found.task not in CALLS:
                return None
            message = found.call
        delivery = Delivery(tag, keys.without_priority(name), priority=priority_of_list(name))
        delivery.begun_before = tuple(begun_before)
        record = self.open_record(tag, message, delivery)
        record.failure = failure(record.title)
        return record.write()

    def build_write(self, record: CallRecord, result: ToolResult, size_bytes: int | None) -> AuditWrite:
        """For the script that ends a call. It does not fail: the answer goes with it."""
        text = ""
        if self._limit or self._file is not None:
            try:
                text = self._build(record, result, size_bytes, time.monotonic())
            except Exception:
                logger.exception("the audit entry of the task %r is incomplete", record.task_id)
                task_id = self.mask_name(record.task_id, server=record.server)[:_NAME_CHARS]
                at = self.time_of(time.monotonic())
                text = AuditEntry(at=at, task_id=task_id, outcome=Outcome.UNKNOWN, worker=self._worker).encode()
        return AuditWrite(text if self._limit else "", self._limit, partial(self._ended, record, result, text))

    def time_of(self, monotonic_s: float) -> float:
        """When that was, in seconds since the epoch; by the clock of Redis once that is known."""
        try:
            return round(self._clock.at(monotonic_s), 6)
        except RuntimeError:
            return round(time.time() - time.monotonic() + monotonic_s, 6)

    def mask_name(self, text: str, server: str = "") -> str:
        """As `mask`, for names and the like, most of which are repeated; cut them afterwards, not before."""
        return self._cached_name(text[:_NAME_LIMIT], server)

    def mask(self, text: str, server: str = "") -> str:
        """A foreign text, as it may be stored; `server` is the id of the server that it is about."""
        # Half a character can be neither stored nor shown.
        return self._maskers.get(server, self._masker).mask(text).encode("utf-8", "replace").decode()

    def _ended(self, record: CallRecord, result: ToolResult, text: str, trouble: str) -> None:
        """This worker ended the call, and the stream took the entry or did not."""
        for observer in self._observers:
            observer.ended(record, result)
        if not text:
            return
        if trouble:
            self._stream_outage.failed(trouble)
        elif self._limit:
            self._stream_outage.succeeded()
        is_written = not trouble
        if self._file is not None:
            is_written &= self._is_done(partial(self._file.append, text))
        if not is_written and record.server in self._maskers:
            self._metrics.add(record.server, NO_TOOL, {"unaudited": 1})

    def _is_done(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            self._file_outage.failed(str(error))
            return False
        self._file_outage.succeeded()
        return True

    def _build(self, record: CallRecord, result: ToolResult, size_bytes: int | None, now: float) -> str:
        """As `AuditEntry.encode` writes it. The model itself would cost a call more than all of the rest."""
        server = record.server
        mask = partial(self.mask, server=server)
        canonical = build_canonical(record.arguments)
        is_ok = result.outcome is Outcome.OK
        duration_s = now - record.picked_up_at if record.picked_up_at is not None else 0.0
        at = self.time_of(now)

        def mask_name(text: str) -> str:
            return self.mask_name(text, server)[:_NAME_CHARS]

        def name(key: str) -> str | None:
            found = record.info.get(key)
            return mask_name(found) if isinstance(found, str) else None

        fields = {
            "v": 1,
            "at": at,
            "call_id": name("call_id") or "",
            "task_id": mask_name(record.task_id),
            "agent_id": name("agent_id"),
            "run_id": name("run_id"),
            "principal": None if record.principal == ANONYMOUS else mask_name(record.principal),
            "priority": None if record.priority == NORMAL else record.priority,
            "server": mask_name(server),
            "operation": None if record.operation == TOOL_CALL else mask_name(record.operation),
            "tool": mask_name(record.tool),
            "arguments": build_shown(canonical, mask),
            "arguments_digest": build_digest(canonical),
            "repairs": result.repairs,
            "outcome": result.outcome,
            "error_code": result.error_code,
            "error": None if is_ok else mask(result.content[:_MASKED_CHARS])[:_ERROR_CHARS],
            "policy": record.policy or None,
            "rule": record.denial.rule if record.denial is not None else None,
            "approval": mask(record.approval)[:_NAME_CHARS] if record.approval else None,
            "input": mask(record.input)[:_NAME_CHARS] if record.rounds else None,
            "attempts": record.attempts,
            "duration_s": result.duration_s or round(duration_s, 6),
            "worker": self._worker,
            "bytes": size_bytes,
            "cached": result.cached or None,
            "large": _describe_large(result, mask_name),
            "steps": list(self._steps(record, at)),
        }
        return _encode({name: value for name, value in fields.items() if value is not None})

    def _steps(self, record: CallRecord, ended_at: float) -> Iterator[dict[str, Any]]:
        if (sent_at := record.time("sent_at")) is not None:
            yield {"name": StepName.QUEUED, "at": sent_at}
        for begun in record.begun_before:
            if 0 <= begun.at <= LATEST_S:
                worker = self.mask_name(begun.worker, record.server)[:_NAME_CHARS]
                yield {"name": StepName.SENT, "at": begun.at, "worker": worker}
        if record.picked_up_at is not None:
            yield {"name": StepName.PICKED_UP, "at": self.time_of(record.picked_up_at)}
        for name, at in record.steps:
            yield {"name": name, "at": self.time_of(at)}
        yield {"name": StepName.ANSWERED, "at": ended_at}


def _describe_large(result: ToolResult, mask_name: Callable[[str], str]) -> dict[str, Any] | None:
    """The handle and the sizes of a result that was cut; any producer may have chosen the id that is its handle."""
    large = result.large
    return large and {**large.model_dump(), "handle": mask_name(large.handle)}

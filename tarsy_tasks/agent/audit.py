"""What an agent records in the audit: calls that no worker had, and that therefore no worker records.

Owns the entries of an agent's process and the thread that writes them, so that its calls do not wait: what Redis does
not take is kept, and written with the next entry. Agents write to a stream of their own, because their entries prove
nothing; `tarsy_tasks.telemetry.audit` reads it.
"""

import logging
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tarsy_tasks.agent.per_app import PerApp
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.errors import BrokerUnavailable, CallError, ConfigError
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.audit import AuditEntry, StepName, build_canonical, build_digest
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.telemetry.shown_arguments import build_shown, select_audited, shorten

if TYPE_CHECKING:
    from celery import Celery

    from tarsy_tasks.config.masking import Masking

__all__ = ["AgentAudit", "audit_of"]

logger = logging.getLogger(__name__)

_KEPT = 1000
_NAME_CHARS, _SEARCHED_NAME = 200, 4000
_ERROR_CHARS = 500
_NAMES = ("call_id", "agent_id", "run_id", "server", "tool")


class AgentAudit:
    """The entries of one process, stored by the broker of one application. Safe to share between threads."""

    def __init__(self, app: "Celery") -> None:
        from tarsy_tasks.settings import load_settings

        self._app = weakref.ref(app)
        self._limit = load_settings().audit_entries
        self._clock = RedisClock()
        self._lock = threading.Lock()
        self._unwritten: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_KEPT)
        self._is_scheduled = False
        self._outage = OutageLog(logger, "audit entries cannot be written, and are kept for the next attempt")
        self._channel: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tarsy-audit")

    def record(
        self, call: SubmittedCall, error: CallError | BrokerUnavailable, *, agent_id: str | None, run_id: str | None
    ) -> None:
        """Record how a call ended that was not answered; returns at once."""
        code = error.code if isinstance(error, CallError) else ErrorCode.NOT_STARTED
        self._put(call, agent_id, run_id, outcome=code.outcome, error_code=code, error=str(error))

    def record_answer(
        self, call: SubmittedCall, answer: ToolResult, *, agent_id: str | None, run_id: str | None
    ) -> None:
        """Record the answer of a function of this process; returns at once."""
        error = {"error": answer.content, "error_code": answer.error_code} if answer.is_error else {"error": ""}
        facts = {name: getattr(answer, name) for name in ("outcome", "repairs", "attempts", "duration_s")}
        self._put(call, agent_id, run_id, **facts, **error)

    def _put(self, call: SubmittedCall, agent_id: str | None, run_id: str | None, **facts: Any) -> None:
        if not self._limit:
            return
        canonical = build_canonical(select_audited(call.operation, call.call.arguments))
        fields: dict[str, Any] = {
            "call_id": call.call.id,
            "task_id": call.id,
            "agent_id": agent_id,
            "run_id": run_id,
            "priority": call.priority,
            "server": call.server,
            "operation": call.operation,
            "tool": call.tool,
            "arguments": shorten(canonical),
            "arguments_digest": build_digest(canonical),
            **facts,
            "steps": [] if call.sent_at is None else [{"name": StepName.QUEUED, "at": call.sent_at}],
        }
        with self._lock:
            self._unwritten.append((time.monotonic(), fields))
            is_scheduled, self._is_scheduled = self._is_scheduled, True
        if not is_scheduled:
            with suppress(RuntimeError):  # the interpreter is shutting down
                self._thread.submit(self._write)

    def _write(self) -> None:
        with self._lock:
            batch = list(self._unwritten)
            self._unwritten.clear()
            self._is_scheduled = False
        try:
            self._write_all(batch)
        except Exception as error:
            # Nobody waits for the audit, and an agent's calls go on without it.
            with self._lock:
                self._unwritten.extendleft(reversed(batch))
            channel, self._channel = self._channel, None
            if channel is not None:
                with suppress(Exception):
                    channel.connection.client.release()
            self._outage.failed(error)
        else:
            self._outage.succeeded()

    def _write_all(self, batch: list[tuple[float, dict[str, Any]]]) -> None:
        from tarsy_tasks.celery_app import mcp_config_of

        app: Any = self._app()
        if app is None:
            return
        if self._channel is None:
            # Not a producer's: that tries to connect for a long time, and an agent that ends would wait for it.
            connection = app.connection_for_write()
            self._channel = connection.ensure_connection(max_retries=1, interval_start=0).channel()
        try:
            servers = mcp_config_of(app).servers
        except ConfigError:  # or there is none
            servers = {}
        with self._channel.conn_or_acquire() as client:
            self._clock.sync(client)
            with client.pipeline(transaction=False) as pipeline:
                for noted_at, fields in batch:
                    at = self._clock.at(noted_at)
                    steps = [*fields["steps"], {"name": StepName.ANSWERED, "at": at}]
                    server = servers.get(fields["server"])
                    masked = _mask_fields(fields, server.masking if server else None)
                    entry = AuditEntry.model_validate({**masked, "at": at, "steps": steps})
                    pipeline.xadd(keys.AGENT_AUDIT, {keys.AUDIT_FIELD: entry.encode()}, maxlen=self._limit)
                pipeline.expire(keys.AGENT_AUDIT, keys.AUDIT_TTL_S)
                pipeline.execute()


def _mask_fields(fields: dict[str, Any], masking: "Masking | None") -> dict[str, Any]:
    from tarsy_tasks.masking.masker import mask_text

    settings = {"groups": masking.groups, "patterns": masking.patterns} if masking else {}

    def mask(text: str) -> str:
        # Half of a surrogate pair can be neither stored nor shown.
        return mask_text(text, **settings).encode("utf-8", "replace").decode()

    names = {name: mask(fields[name][:_SEARCHED_NAME])[:_NAME_CHARS] for name in _NAMES if fields[name] is not None}
    shown = {"arguments": build_shown(fields["arguments"], mask), "error": mask(fields["error"])[:_ERROR_CHARS] or None}
    return fields | names | shown


audit_of = PerApp(AgentAudit)
"""The one `AgentAudit` of this process for an application."""

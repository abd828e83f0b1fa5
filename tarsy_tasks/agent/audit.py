"""What an agent tells the audit: calls that no worker had, and of which therefore no worker tells.

Owns the entries of an agent's process and the thread that writes them, off the way of its calls: what Redis does not
take is kept, and written with the next entry. An agent's entries are its own word and lie in a stream of their own; how
they are read, `tarsy_tasks.telemetry.audit` says.
"""

import logging
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.errors import BrokerUnavailable, CallError, ConfigError
from tarsy_tasks.models import ToolCall
from tarsy_tasks.outcomes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from tarsy_tasks.config import ServerConfig

__all__ = ["AgentAudit", "audit_of"]

logger = logging.getLogger(__name__)

_KEPT = 1000
_NAME_CHARS, _SEARCHED_NAME = 200, 4000
_ERROR_CHARS = 500
_NAMES = ("call_id", "agent_id", "run_id", "server", "tool")


class AgentAudit:
    """The entries of one process about calls through one application. Safe to share between threads.

    Args:
        app: Whose broker gets them.
    """

    def __init__(self, app: "Celery") -> None:
        from tarsy_tasks.settings import load_settings

        self._app = weakref.ref(app)
        self._limit = load_settings().audit_entries
        self._clock = RedisClock()
        self._lock = threading.Lock()
        self._unwritten: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_KEPT)
        self._is_scheduled = self._is_failing = False
        self._channel: Any = None

    def tell(
        self,
        call: ToolCall,
        error: CallError | BrokerUnavailable,
        *,
        server: str,
        tool: str,
        task_id: str = "",
        sent_at: float | None = None,
        agent_id: str | None,
        run_id: str | None,
    ) -> None:
        """Tell how a call ended; returns at once.

        Args:
            task_id: Empty if the call was never sent.
            sent_at: When it was, in seconds since the epoch by the clock of Redis.
        """
        if not self._limit:
            return
        from tarsy_tasks.telemetry.audit import StepName, build_canonical, build_digest
        from tarsy_tasks.telemetry.shown_arguments import shorten

        canonical = build_canonical(call.arguments)
        code = error.code if isinstance(error, CallError) else ErrorCode.NOT_STARTED
        fields: dict[str, Any] = {
            "call_id": call.id,
            "task_id": task_id,
            "agent_id": agent_id,
            "run_id": run_id,
            "server": server,
            "tool": tool,
            "arguments": shorten(canonical),
            "arguments_digest": build_digest(canonical),
            "outcome": code.outcome,
            "error_code": code,
            "error": str(error),
            "steps": [] if sent_at is None else [{"name": StepName.QUEUED, "at": sent_at}],
        }
        with self._lock:
            self._unwritten.append((time.monotonic(), fields))
            is_scheduled, self._is_scheduled = self._is_scheduled, True
        if not is_scheduled:
            with suppress(RuntimeError):  # the interpreter is on its way out
                _thread().submit(self._write)

    def _write(self) -> None:
        with self._lock:
            batch = list(self._unwritten)
            self._unwritten.clear()
            self._is_scheduled = False
        try:
            self._write_all(batch)
        except Exception as error:
            # Nobody waits for this, and an agent's calls go on without it.
            with self._lock:
                self._unwritten.extendleft(reversed(batch))
            self._release_lease()
            if not self._is_failing:
                logger.warning("entries for the audit cannot be written, and are kept: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _write_all(self, batch: list[tuple[float, dict[str, Any]]]) -> None:
        from tarsy_tasks.telemetry.audit import AuditEntry, StepName

        app: Any = self._app()
        if app is None:
            return
        if self._channel is None:
            # Not a producer's: that tries for long to connect, and an agent that ends would wait for it.
            connection = app.connection_for_write()
            self._channel = connection.ensure_connection(max_retries=1, interval_start=0).channel()
        servers = _load_servers()
        with self._channel.conn_or_acquire() as client:
            self._clock.sync(client)
            with client.pipeline(transaction=False) as pipeline:
                for noted_at, fields in batch:
                    at = self._clock.at(noted_at)
                    steps = [*fields["steps"], {"name": StepName.ANSWERED, "at": at}]
                    entry = AuditEntry.model_validate({**_masked(fields, servers), "at": at, "steps": steps})
                    pipeline.xadd(keys.AGENT_AUDIT, {keys.AUDIT_FIELD: entry.encode()}, maxlen=self._limit)
                pipeline.expire(keys.AGENT_AUDIT, keys.AUDIT_TTL_S)
                pipeline.execute()

    def _release_lease(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with suppress(Exception):
                channel.connection.client.release()


def _load_servers() -> "Mapping[str, ServerConfig]":
    """Those that are configured now; none where there is no configuration."""
    from tarsy_tasks.config import find_config_path, load_config

    try:
        return load_config(find_config_path()).servers
    except ConfigError:
        return {}


def _masked(fields: dict[str, Any], servers: "Mapping[str, ServerConfig]") -> dict[str, Any]:
    """What a model or its agent wrote, as it may be stored: masked as the configuration has it for the server."""
    from tarsy_tasks.masking.masker import mask_text
    from tarsy_tasks.telemetry.shown_arguments import build_shown

    server = servers.get(fields["server"])
    settings = {"groups": server.masking.groups, "patterns": server.masking.patterns} if server else {}

    def mask(text: str) -> str:
        # Half a character can be neither stored nor shown.
        return mask_text(text, **settings).encode("utf-8", "replace").decode()

    names = {name: mask(fields[name][:_SEARCHED_NAME])[:_NAME_CHARS] for name in _NAMES if fields[name] is not None}
    shown = {"arguments": build_shown(fields["arguments"], mask), "error": mask(fields["error"])[:_ERROR_CHARS]}
    return fields | names | shown


_audits = weakref.WeakKeyDictionary["Celery", AgentAudit]()
_audits_lock = threading.Lock()


def audit_of(app: "Celery") -> AgentAudit:
    """What this process tells of its calls through an application."""
    with _audits_lock:
        found = _audits.get(app)
        if found is None:
            found = _audits[app] = AgentAudit(app)
        return found


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="tarsy-audit")


def _forget() -> None:
    """A forked child has none of the threads."""
    global _audits, _audits_lock
    _audits = weakref.WeakKeyDictionary["Celery", AgentAudit]()
    _audits_lock = threading.Lock()
    _thread.cache_clear()


os.register_at_fork(after_in_child=_forget)

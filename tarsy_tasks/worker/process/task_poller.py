"""Asks MCP servers about the tasks that parked calls wait for, and wakes those calls.

Owns when this worker looks which calls are due, how many servers are asked at once, and what of an answer wakes a call.
Which worker asks about which call is decided in Redis (`broker.server_tasks`); the call itself fetches its result
(`calls.task_answer`). Everything runs on the session loop, and takes no slot.

A worker that is lost has lost nothing: its calls are due again after a lease. A server that cannot be reached is asked
again later, until the deadline of the call.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from mcp import MCPError
from pydantic import ValidationError
from redis.exceptions import RedisError, ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.server_tasks import Asked, DueTask, settle, take_due, take_revoked
from tarsy_tasks.errors import CallError
from tarsy_tasks.event_loop import next_beat
from tarsy_tasks.interceptors import ANONYMOUS
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.event_feed import EventFeed
from tarsy_tasks.worker.process.revocations import Revocations
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.recovery import Executed, classify_error, pause_of
from tarsy_tasks.worker.sessions.tasks_extension import TaskState, cancel_task, get_task, is_final

__all__ = ["TaskPoller"]

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
"""So often Redis is asked for calls that are due, or cancelled, while calls wait for tasks and none is known to be due
earlier; and so often this worker looks which calls were revoked."""
_SHORTEST_LOOK_S = 0.1
_IDLE_LOOK_S = 5.0
"""So often if no call waits for a task, as far as this worker knows: another one may have parked some, and be lost."""
_MOST_ASKED = 64
"""At once, of each server."""
_UNREACHABLE_S = 5.0
_LONGEST_ASK_S = 10.0
_LEASE_SHARE = 0.7
"""Of a lease, for the answer of a server: afterwards another worker asks."""
_KEPT_MARGIN_S = 60.0
"""A server is asked about a task for this much longer than it said that it keeps it."""
_TEXT_CHARS = 500
_ASKED_AGAIN_S = 10.0
"""So rarely a server is asked about a task while a person is asked for its input."""


class TaskPoller:
    """The task poller of one worker process."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By server and place."""
        self._asked: list[Asked] = []
        self._settling: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")
        self._is_waited_for = False
        """At the last look, calls waited for tasks."""
        self._revocations = Revocations()
        self._refusals = OutageLog(logger, "tasks of MCP servers cannot be asked about, because Redis refuses it")

    async def run(self) -> None:
        """Look and ask until it is cancelled."""
        looks = 0
        wait_s = _LOOK_S
        while True:
            await (next_beat(_LOOK_S) if wait_s == _LOOK_S else asyncio.sleep(wait_s))
            wait_s = _LOOK_S
            looks += 1
            try:
                due_s = await self._look(looks)
                self._refusals.succeeded()
            except ResponseError as error:
                self._refusals.failed(error)
            except (RedisError, OSError):
                pass  # the next look finds them
            except Exception:
                logger.exception("tasks of MCP servers could not be asked about")
            else:
                wait_s = _LOOK_S if due_s is None else min(max(due_s, _SHORTEST_LOOK_S), _LOOK_S)

    async def _look(self, looks: int) -> float | None:
        context = self._context
        servers = [*context.connections]
        exchange, worker = context.in_flight.exchange, (context.instance, context.lease_s)
        if revoked := self._revocations.take():
            self._ask_all(await take_revoked(exchange, revoked, servers, *worker))
        self._revocations.confirm()
        now = time.monotonic()
        # A call that has just been parked may not be in Redis yet.
        is_expected = self._is_waited_for or now - context.task_parked_at < _IDLE_LOOK_S
        if not is_expected and now - self._looked_at < _IDLE_LOOK_S:
            return None
        asked = Counter(server for server, _ in self._asking)
        free = {server: _MOST_ASKED - asked[server] for server in servers if asked[server] < _MOST_ASKED}
        if not free:
            return None
        found, next_s = await take_due(exchange, free, *worker, looks)
        self._looked_at, self._is_waited_for = now, next_s is not None
        self._ask_all(found)
        # What is due and was not taken is that of another worker.
        return next_s if found or next_s is None or next_s > 0 else None

    def _ask_all(self, found: Iterable[DueTask]) -> None:
        for due in found:
            key = due.server, due.place
            if key not in self._asking:
                asking = self._asking[key] = asyncio.get_running_loop().create_task(self._ask(due))
                asking.add_done_callback(lambda _, key=key: self._asking.pop(key, None))

    async def _ask(self, due: DueTask) -> None:
        try:
            asked = await self._ask_server(due)
        except Exception:
            logger.exception("MCP server %s could not be asked about a task", due.server)
            asked = Asked(due, "", _UNREACHABLE_S)
        self._asked.append(asked)
        if self._settling is None:
            self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def _ask_server(self, due: DueTask) -> Asked:
        connection = self._context.connections.get(due.server)
        if connection is None:
            return Asked(due, "", _UNREACHABLE_S)
        if connection.agents is None:
            return await self._ask_over(connection, due)
        try:
            async with connection.agents.lend(due.principal or ANONYMOUS) as own:
                return await self._ask_over(own, due)
        except CallError:  # its credential is gone, or the server takes no calls
            return Asked(due, "cancelled" if due.is_cancelled else "", _UNREACHABLE_S)

    async def _ask_over(self, connection: ServerConnection, due: DueTask) -> Asked:
        if due.is_cancelled:
            with suppress(CallError, TimeoutError, MCPError, ValidationError):
                await self._send(connection, due)
            return Asked(due, "cancelled")
        if (paused_s := connection.paused_until - time.monotonic()) > 0:
            return Asked(due, "", paused_s)
        try:
            state = await self._send(connection, due)
        except (CallError, TimeoutError):
            return Asked(due, "", _UNREACHABLE_S)
        except ValidationError:
            return Asked(due, "done")  # the call finds out, and says so
        except MCPError as error:
            if classify_error(error).executed is Executed.YES:
                return Asked(due, "done")
            if (pause_s := pause_of(error)) is not None:
                connection.pause(pause_s)
            return Asked(due, "", _UNREACHABLE_S)
        connection.availability.record_answer()
        return await self._judge(connection, due, state)

    async def _send(self, connection: ServerConnection, due: DueTask) -> TaskState:
        timeout_s = min(_LONGEST_ASK_S, self._context.lease_s * _LEASE_SHARE)
        async with asyncio.timeout(timeout_s):
            session = await connection.connected_for_call()
            if due.is_cancelled:
                await session.request(lambda client: cancel_task(client, due.task), timeout_s)
                return TaskState("cancelled")
            return await session.request(lambda client: get_task(client, due.task, timeout_s), timeout_s)

    async def _judge(self, connection: ServerConnection, due: DueTask, state: TaskState) -> Asked:
        if is_final(state.status):
            return Asked(due, "done")
        if state.status == "input_required":
            if due.reason == INPUT_REQUIRED:  # somebody is asked
                return Asked(due, "", max(state.poll_s, _ASKED_AGAIN_S))
            if state.asks_else or state.asked.keys() - set(json.loads(due.answered or "[]")):
                return Asked(due, "done")
        kept_s = self._context.clock.now() - due.sent_at
        if state.ttl_s is not None and kept_s > state.ttl_s + _KEPT_MARGIN_S:
            return Asked(due, "expired")
        message = connection.masker.mask_start(state.message, _TEXT_CHARS)
        if message == due.message:
            message = ""
        if message and due.has_listener:
            await self._publish(connection, due, message, kept_s)
        return Asked(due, "", state.poll_s, message)

    async def _publish(self, connection: ServerConnection, due: DueTask, message: str, kept_s: float) -> None:
        """What the server says of its task is progress, though nobody knows of how much: seconds are counted."""
        feed = EventFeed(self._context, connection, due.tag, None, keys.agent_of_queue(due.home))
        feed.hear_progress({"progress": round(kept_s, 1), "message": message})
        await feed.finish(keeps_state=True)

    async def _settle(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, []
                # What cannot be noted is asked again after the lease.
                with suppress(RedisError, OSError):
                    await settle(self._context.in_flight.exchange, asked)
        except Exception:
            logger.exception("the states of tasks of MCP servers could not be recorded")
        finally:
            self._settling = None

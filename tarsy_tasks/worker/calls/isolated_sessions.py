"""The isolated sessions of this worker: each run of an agent that asks for it has its own session with an MCP server.

Owns which of them this worker holds, and how a call of a run gets to its session: here, or in the worker that holds it.
What Redis knows of them is `broker.session_directory`, and the connection of a run is `sessions.isolated_connection`.
Everything runs on the session loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from redis.exceptions import RedisError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.session_directory import Bounds, Claim, ClaimState, SessionDirectory, session_key_of
from tarsy_tasks.broker.session_handover import forward
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Requeued
from tarsy_tasks.models import RunSession
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.isolated_connection import IsolatedConnection, lost_session_error

__all__ = ["HeldSession", "IsolatedSessions", "session_of"]

logger = logging.getLogger(__name__)

_CONFIRMED_S = 5.0
"""How long a claim is believed without asking Redis: less than other workers take to consider this one dead."""
_CONFIRMATIONS_A_LEASE = 4
_WAIT_S = 1.0
_MOST_EXECUTORS = 100
_WORKER_LOST, _WORKER_STOPPED = "its worker was lost.", "its worker was stopped."


@dataclass(eq=False)
class HeldSession:
    """An isolated session that this worker holds.

    Attributes:
        key: Its name in Redis.
        executors: Those that have used it, and not closed it.
        leaving: How many wishes to close it have come that nothing was done about yet: calls that come now are later.
        running: How many of its calls run.
        used_at: When the last one ended; monotonic time.
        confirmed_at: When Redis last said that this worker holds it.
        is_marked: Redis knows that something was opened.
        is_told: A call was told that its state is gone.
        unknown_why: When it was opened, Redis knew nothing of it: why, if the run has used it before. Empty once a call
            was told so.
        joined: The executors that have sent a call since.
    """

    key: str
    server: str
    principal: str
    connection: IsolatedConnection
    executors: set[str] = field(default_factory=set[str])
    leaving: int = 0
    running: int = 0
    used_at: float = field(default_factory=time.monotonic)
    confirmed_at: float = field(default_factory=time.monotonic)
    is_marked: bool = False
    is_told: bool = False
    unknown_why: str = ""
    joined: set[str] = field(default_factory=set[str])
    timer: asyncio.TimerHandle | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, executor: str) -> None:
        """A call begins to use it."""
        self.running += 1
        if len(self.executors) < _MOST_EXECUTORS:
            self.executors.add(executor)

    def end(self) -> None:
        """It has ended."""
        self.running -= 1
        self.used_at = time.monotonic()
        self._ended.set()

    async def close(self) -> None:
        """Close the connection when its calls are over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.connection.server.timeouts.longest_call_s):
                while self.running:
                    self._ended.clear()
                    await self._ended.wait()
        await self.connection.close()


class IsolatedSessions:
    """The isolated sessions of one worker process; a `KeptPerServer`.

    Args:
        connect: Makes the connection of a run beside the shared one, for a principal.
        consume: Takes messages from a queue of this worker's own; whether it can.
    """

    def __init__(
        self,
        context: WorkerContext,
        connect: Callable[[ServerConnection, str], IsolatedConnection],
        consume: Callable[[str], bool],
    ) -> None:
        self._context = context
        self._connect = connect
        self._consume = consume
        self._directory = SessionDirectory(context.in_flight.exchange, context.instance, context.lease_s)
        self._held: dict[str, HeldSession] = {}
        self._claiming = asyncio.Lock()
        """Two calls of a run that come at once would otherwise both open its session."""
        self._background: set[asyncio.Task[None]] = set()
        self._queues: set[str] = set()
        self._confirming: asyncio.Task[None] | None = None
        self._is_closed = False

    # Of the pool.

    def consume_again(self) -> None:
        """Messages are fetched again after an outage of Redis."""
        for queue in self._queues:
            self._consume(queue)

    def add(self, connection: ServerConnection) -> None:
        """As `KeptPerServer.add`."""
        self._end_all("the configuration of the server was changed.", connection.server.name)

    def remove(self, server: str) -> None:
        """As `KeptPerServer.remove`."""
        self._end_all("the server was removed from the configuration.", server)

    async def close(self) -> None:
        """Hold none any more, because the worker stops; return when those are closed that have no call any more."""
        self._is_closed = True
        self._end_all(_WORKER_STOPPED)
        if self._background:
            await asyncio.wait({*self._background})

    def _end_all(self, why: str, server: str = "") -> None:
        for held in [each for each in self._held.values() if server in ("", each.server)]:
            self._end(held, why)

    # Of calls.

    async def find(self, call: RunningCall) -> HeldSession | Requeued:
        """The session of a call; or how the call ends here, because it has to wait, or to go to another worker.

        Raises:
            CallError: Its state is gone, there is no room for it, or its agent has no credential any more.
        """
        key = session_key_of(call.server, call.principal, session_of(call).run)
        held = self._held.get(key)
        if held is not None and held.connection.has_old_credentials:
            await self._check_credentials(held)
            held = self._held.get(key)
        if held is not None and self._is_sure(held):
            return held
        async with self._claiming:
            held = self._held.get(key)
            if held is not None and self._is_sure(held):
                return held  # another call has asked meanwhile
            try:
                return await self._claim(call, key)
            except (RedisError, OSError) as error:
                logger.warning("Redis cannot say who holds an isolated session: %s", error)
                return Requeued("Redis is unavailable", _WAIT_S)

    async def _check_credentials(self, held: HeldSession) -> None:
        """Give up a session whose agent has got another credential. Raises `CallError` as `has_other_credentials`."""
        try:
            if await held.connection.has_other_credentials():
                await self._give_up(held, "the credential of its agent was changed.")
        except CallError as error:
            if error.code is ErrorCode.NO_CREDENTIAL:
                await self._give_up(held, "the credential of its agent was removed.")
            raise

    async def _give_up(self, held: HeldSession, why: str) -> None:
        """As `_end`; returns when Redis knows it, before the next call of the run asks."""
        async with self._claiming:
            if self._held.get(held.key) is held:
                self._forget(held)
                await self._release(held, why)

    def _is_sure(self, held: HeldSession) -> bool:
        is_fresh = time.monotonic() - held.confirmed_at < min(_CONFIRMED_S, self._context.lease_s / 2)
        return is_fresh and not held.leaving and not held.connection.is_lost

    async def _claim(self, call: RunningCall, key: str) -> HeldSession | Requeued:
        held, shared = self._held.get(key), self._context.connections.get(call.server) or call.connection
        delivery = _delivery_of(call)
        limits = shared.server.isolated
        if shared.agents is not None:
            shared.agents.refuse_unknown(call.principal)  # before it takes the place of others
        is_held = held is not None and not held.connection.is_lost
        is_full = held is None and self._is_full(call.server, limits.max_per_worker)
        # Before others can send anything there.
        home = keys.call_queue(call.server, keys.agent_of_queue(call.queue) or None)
        is_full = not self.consume_own(home) or is_full
        claim = await self._directory.claim(
            call.server,
            key,
            call.principal,
            delivery.tag,
            home=home,
            bounds=Bounds(limits.max_sessions, limits.max_per_agent),
            idle_s=limits.idle_s,
            is_held=is_held,
            had_state=held is not None and held.is_marked,
            is_full=is_full,
            restarts=limits.restart or (held is not None and held.is_told),
        )
        if claim.state is ClaimState.HELD and held is not None:
            held.confirmed_at = time.monotonic()
            return held
        if held is not None:
            self._forget(held)
        match claim.state:
            case ClaimState.CLAIMED:
                return self._hold(key, call, shared, claim.reason)
            case ClaimState.FULL:
                return _wait(call, claim.reason)
            case ClaimState.LOST:
                ended = held.connection.describe_loss() if held is not None else _WORKER_LOST
                raise lost_session_error(call.server, claim.reason or ended)
            case _:
                return self._pass_on(call, key, claim)

    def _is_full(self, server: str, most: int) -> bool:
        return self._is_closed or len([1 for each in self._held.values() if each.server == server]) >= most

    def consume_own(self, home: str) -> bool:
        """Take messages also from the queue of this worker beside that one; whether it can."""
        queue = keys.affinity_queue(home, self._context.instance)
        if queue not in self._queues:
            # With a colon in the name of the worker, nothing could be taken back from the queue.
            if ":" in self._context.instance or not self._consume(queue):
                return False
            self._queues.add(queue)
        return True

    def _pass_on(self, call: RunningCall, key: str, claim: Claim) -> Requeued:
        _delivery_of(call).pass_on = partial(forward, session=key, holder=claim.holder)
        return Requeued("another worker holds its session", 0)

    def _hold(self, key: str, call: RunningCall, shared: ServerConnection, unknown_why: str) -> HeldSession:
        held = self._held[key] = HeldSession(key, call.server, call.principal, self._connect(shared, call.principal))
        held.unknown_why = unknown_why
        self._look_later(held, shared.server.isolated.idle_s, shared.server.isolated.idle_s)
        if self._confirming is None:
            self._confirming = asyncio.create_task(self._confirm())
            self._confirming.add_done_callback(self._stop_confirming)
        return held

    async def _confirm(self) -> None:
        while self._held:
            await asyncio.sleep(self._context.lease_s / _CONFIRMATIONS_A_LEASE)
            with suppress(RedisError, OSError):
                await self._directory.confirm((each.server, each.key, each.principal) for each in self._held.values())

    def _stop_confirming(self, _: object) -> None:
        self._confirming = None

    def _look_later(self, held: HeldSession, idle_s: float, after_s: float) -> None:
        def look() -> None:
            left_s = idle_s - (time.monotonic() - held.used_at)
            if held.running or left_s > 0:
                self._look_later(held, idle_s, idle_s if held.running else left_s)
            else:
                self._end(held, f"it was closed after {idle_s:g} s without a call.")

        held.timer = asyncio.get_running_loop().call_later(after_s, look)

    async def mark_open(self, held: HeldSession) -> Requeued | None:
        """From now on the session has a state. Returns how the call ends here if nobody would know when it is lost:
        this worker has given it up meanwhile, because it stops, or cannot write that down."""
        if not held.connection.has_state:
            return None
        try:
            held.is_marked = await self._directory.mark_open(held.key)
        except (RedisError, OSError) as error:
            logger.warning("an isolated session cannot be recorded in Redis: %s", error)
            return Requeued("Redis is unavailable", _WAIT_S)
        return None if held.is_marked else Requeued("its session was given up before it was used", 0)

    def join(self, held: HeldSession, call: RunningCall) -> CallError | None:
        """A call is about to be sent. Returns how it ends instead if its executor knows of a state that Redis knew
        nothing of: that was in another session, which is lost."""
        asked = session_of(call)
        if asked.executor in held.joined or len(held.joined) >= _MOST_EXECUTORS:
            return None
        held.joined.add(asked.executor)
        may_tell = held.connection.has_state and not held.connection.server.isolated.restart
        if not (asked.continued and held.unknown_why and may_tell):
            return None
        why, held.unknown_why = held.unknown_why, ""
        return lost_session_error(held.server, why)

    async def leave(self, call: RunningCall) -> Requeued | None:
        """An executor needs its session no longer: it is closed when none does. Returns how the call ends here if
        another worker holds it."""
        key = session_key_of(call.server, call.principal, session_of(call).run)
        tag = _delivery_of(call).tag
        if (known := self._held.get(key)) is not None:
            known.leaving += 1
        try:
            async with self._claiming:
                return await self._leave(call, key, tag)
        finally:
            if known is not None:
                known.leaving -= 1

    async def _leave(self, call: RunningCall, key: str, tag: str) -> Requeued | None:
        held = self._held.get(key)
        if held is None:
            try:
                claim = await self._directory.claim(call.server, key, call.principal, tag, opens=False)
            except (RedisError, OSError):
                return Requeued("Redis is unavailable", _WAIT_S)
            return None if claim.state is ClaimState.NONE else self._pass_on(call, key, claim)
        held.executors.discard(session_of(call).executor)
        if not held.executors:
            self._forget(held)
            await self._release(held, "")  # before a call that comes now asks
        return None

    def _end(self, held: HeldSession, why: str) -> None:
        """Hold it no longer. `why` is for the next call of its run; empty: nobody has to know."""
        self._forget(held, self._release(held, why))

    async def _release(self, held: HeldSession, why: str) -> None:
        with suppress(RedisError, OSError):
            await self._directory.release(held.server, held.key, why)

    def _forget(self, held: HeldSession, first: Coroutine[None, None, None] | None = None) -> None:
        if self._held.get(held.key) is held:
            del self._held[held.key]
        if held.timer is not None:
            held.timer.cancel()

        async def close() -> None:
            if first is not None:
                await first
            await held.close()

        task = asyncio.create_task(close())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def session_of(call: RunningCall) -> RunSession:
    """What a call of an isolated session says of it."""
    assert call.info.session is not None
    return call.info.session


def _delivery_of(call: RunningCall) -> Delivery:
    if call.delivery is None:
        raise CallError(
            ErrorCode.INVALID_MESSAGE,
            f"{call.record.title} did not run: a call of an isolated session has to come through a queue of this "
            "package, over its own transport. The program that sent it has to be fixed.",
        )
    return call.delivery


def _wait(call: RunningCall, bound: str) -> Requeued:
    """For a call that opens one session too many: it waits in its queue, where other workers may take it."""
    whose = " for this agent" if bound == "agent" else ""
    if call.deadline - time.monotonic() > 2 * _WAIT_S:
        return Requeued("there is no room for another isolated session", _WAIT_S)
    raise CallError(
        ErrorCode.TOO_MANY_SESSIONS,
        f"{call.record.title} did not run: there are as many isolated sessions with MCP server `{call.server}` as this "
        f"deployment allows{whose}, and none was closed in time. Call it again later.",
    )

"""The watches of resources that this worker holds: of each watch of an agent, one worker hears what changes.

Owns holding them, publishing what they hear, and taking over those of lost workers and those that other workers have
given up because they have no session. What is in Redis is `broker.watches`. Everything runs on the session loop.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from tarsy_tasks.broker import fleet, keys, watches
from tarsy_tasks.errors import CallError, NoSessionError
from tarsy_tasks.methods import WATCH_RESOURCE, say_nothing_of_tools
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.resources import WatchMessage
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.running_call import require_connection
from tarsy_tasks.worker.calls.watched_server import Watch, WatchedServer
from tarsy_tasks.worker.sessions.call_errors import describe_error
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connection_errors import removed_error
from tarsy_tasks.worker.sessions.connection_state import State

__all__ = ["ResourceWatches"]

logger = logging.getLogger(__name__)

_RENEWALS_A_LEASE = 4
_LOOK_S = 1.0
_PAUSE_S = 0.1
"""Between two messages of a watch."""
_RETRY_S = 1.0
_UNSERVED_LEASES = 3
"""For how long no worker serves a server until its watches are forgotten."""
_LONGEST_URI = 8 * 1024
_MOST_AT_ONCE = 500
_ERROR_CHARS = 500
_TOO_MANY = (
    f"there are too many watches: at most {watches.MOST_OF_ONE} of one agent, or of one process without a Redis user "
    f"of its own, {watches.MOST_SHARED} of all of these where other agents have users, and {watches.MOST} in all"
)
_LOST = (
    "the watch was lost while the server was asked: the worker stopped, had no connection to Redis for too long, or "
    "the policy no longer permits it. Watch again"
)
_READY = (State.CONNECTED, State.IDLE, State.PER_AGENT)


class ResourceWatches:
    """The watches of one worker process.

    Args:
        dropped: Returns when what has changed is no longer in the cache of answers: an agent that hears of a change
            reads the resource again.
    """

    def __init__(self, context: WorkerContext, dropped: Callable[[], Awaitable[None]]) -> None:
        self._context = context
        self._redis = context.results
        self._dropped = dropped
        self._held: dict[str, Watch] = {}
        self._servers: dict[ServerConnection, WatchedServer] = {}
        self._due: dict[str, Watch] = {}
        self._publishing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._was_renewed = False
        self._outage = OutageLog(logger, "watches of resources cannot be kept in Redis")
        self._failures: dict[tuple[str, str], OutageLog] = {}
        """By server, and by agent where each has a session of its own."""
        self._unserved: dict[str, float] = {}
        """Since when no worker serves a server; monotonic time."""

    async def begin(self, watch: Watch, timeout_s: float) -> str:
        """Hold a new watch.

        Returns:
            Why it cannot be held; empty if it is.

        Raises:
            CallError: There is no session with its server.
            MCPError: The server could not be asked.
            RedisError, OSError: Redis does not record it.
        """
        text = json.dumps({"uri": watch.uri, "principal": watch.principal})
        owner = f":{watch.agent}:" if watch.agent else f"::{watch.id[: keys.TASK_ID_PREFIX_LENGTH]}"
        most_shared = watches.MOST_SHARED if self._context.binding.is_bound else watches.MOST
        about = {"record": watch.record, "member": watch.member, "text": text}
        slots = {**about, "owner": owner, "most_shared": most_shared}
        if not await watches.add.run_async(self._redis, **slots, **self._holding):
            return _TOO_MANY
        self._held[watch.id] = watch
        try:
            refused = await self._subscribe(watch.server, watch.principal, [watch], timeout_s)
        except BaseException:
            await self._discard(watch)
            raise
        if not refused and self._held.get(watch.id) is watch:
            return ""
        await self._discard(watch)
        return _LOST if not refused else f"it answered: {self._masked(watch, refused[watch.uri])}"

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._context.lease_s / _RENEWALS_A_LEASE)
            try:
                await self._renew()
                self._outage.succeeded()
            except (RedisError, OSError) as error:
                self._was_renewed = False
                self._outage.failed(error)
            except Exception:
                logger.exception("watches of resources could not be renewed")

    async def close(self) -> None:
        """Give all of them up: other workers take them over."""
        for each in self._tasks:
            each.cancel()
        await self._give_up([*self._held.values()])
        for server in [*self._servers.values()]:
            with suppress(Exception):
                await server.close()

    @property
    def _holding(self) -> dict[str, Any]:
        return {"instance": self._context.instance, "held_s": self._context.lease_s}

    async def _renew(self) -> None:
        held = [*self._held.values()]
        # A worker that had no connection to Redis holds its watches again, before another one may take them over.
        lost, free = await watches.renew.run_async(
            self._redis,
            *(each.record for each in held),
            members=[each.member for each in held],
            of_lost=self._was_renewed,
            **self._holding,
        )
        self._was_renewed = True
        for number in lost:
            self._drop(held[number - 1])
        for watch in [*self._held.values()]:
            if (why := self._denied(watch)) is not None:
                self._refuse(watch, why)
        if free:
            await self._take_over(free)

    def _denied(self, watch: Watch) -> str | None:
        """Why it ends: its server was removed, or the policy, which may have changed, does not permit it. None: it
        goes on."""
        if watch.server in self._context.connections.removed:
            return removed_error(watch.server).text
        if (policy := self._context.policy) is None:
            return None
        who = watch.principal, watch.server, WATCH_RESOURCE
        denial = policy.deny_name(*who) or policy.check_arguments(*who, {"uri": watch.uri})
        return None if denial is None else denial.text

    async def _take_over(self, members: Iterable[bytes]) -> None:
        read = [(watches.member_of(*each), *each) for each in map(watches.read_member, members)]
        connections = self._context.connections
        ready = {name: each for name, each in connections.items() if each.state in _READY}
        answered = ready.keys() | connections.removed
        own = [each for each in read if each[1] in answered][:_MOST_AT_ONCE]
        claimed = await asyncio.gather(*(self._claim(*each) for each in own))
        found: dict[tuple[str, str], list[Watch]] = {}
        for watch in filter(None, claimed):
            if (why := self._denied(watch)) is not None:
                self._refuse(watch, why)
                continue
            self._held[watch.id] = watch
            principal = "" if ready[watch.server].agents is None else watch.principal
            found.setdefault((watch.server, principal), []).append(watch)
        for (server, principal), taken in found.items():
            self._start(self._continue(server, principal, taken))
        if others := [each for each in read if each[1] not in answered][:_MOST_AT_ONCE]:
            await self._forget(others)

    async def _forget(self, others: list[tuple[str, str, str, str]]) -> None:
        """Of these watches of other servers, forget those whose agents are gone, and those that no worker can take
        over: their agents notice, ask again, and are answered as to any call."""
        records = [keys.watch_key(*each[2:]) for each in others]
        are_there = await self._redis.execute(*(("EXISTS", each) for each in records))
        names = [*{each[1] for each in others if each[1] not in self._context.connections}]
        asked = [fleet.ask_serving(each, self._context.clock.now()) for each in names]
        are_served = await self._context.in_flight.exchange.execute(*asked) if asked else []
        now = time.monotonic()
        unserved = [name for name, is_served in zip(names, are_served, strict=True) if not is_served]
        self._unserved = {name: self._unserved.get(name, now) for name in unserved}
        patience_s = _UNSERVED_LEASES * self._context.lease_s
        over = {name for name, since in self._unserved.items() if now - since >= patience_s}
        gone = [
            (member, record)
            for (member, server, *_), record, is_there in zip(others, records, are_there, strict=True)
            if not is_there or server in over
        ]
        if gone:
            members, records = zip(*gone, strict=True)
            await self._redis.execute(("ZREM", keys.WATCHES, *members), ("DEL", *records))

    async def _claim(self, member: str, server: str, agent: str, watch_id: str) -> Watch | None:
        record = keys.watch_key(agent, watch_id)
        text = await watches.claim.run_async(self._redis, record=record, member=member, **self._holding)
        if text is None:
            return None
        about = json.loads(text)
        return Watch(watch_id, server, agent, about["principal"], about["uri"])

    async def _continue(self, server: str, principal: str, taken: list[Watch]) -> None:
        try:
            refused = await self._subscribe(server, principal, taken)
        except Exception as error:
            await self._fail(server, principal, error, taken)
            return
        for watch in taken:
            if self._held.get(watch.id) is not watch:
                continue
            if (why := refused.get(watch.uri)) is not None:
                self._refuse(watch, why)
            else:
                watch.is_uncertain = True
                self._report(watch)

    async def _subscribe(
        self, server: str, principal: str, added: list[Watch], timeout_s: float | None = None
    ) -> dict[str, str]:
        watched = await self._find(server, principal)
        watched.adding += 1
        try:
            refused = await (watched.add(added) if timeout_s is None else watched.add(added, timeout_s))
            for watch in added:
                if self._held.get(watch.id) is not watch:  # it was dropped meanwhile
                    watched.remove(watch)
            return refused
        finally:
            watched.adding -= 1

    async def _find(self, server: str, principal: str) -> WatchedServer:
        connection, lent = require_connection(self._context, server), AsyncExitStack()
        keeps, agent = _always, ""
        if (agents := connection.agents) is not None:
            connection = await lent.enter_async_context(agents.lend_to_watch(principal))
            keeps, agent = partial(agents.keeps, principal, connection), principal
        if (found := self._servers.get(connection)) is not None:
            await lent.aclose()
            return found
        watched = self._servers[connection] = WatchedServer(connection, lent, self._report, self._refuse)
        self._start(self._follow(watched, agent, keeps))
        return watched

    async def _follow(self, watched: WatchedServer, agent: str, keeps: Callable[[], Awaitable[bool]]) -> None:
        connection = watched.connection
        name = connection.server.name
        try:
            await asyncio.sleep(0)  # a task that needs it adds something first
            while await keeps() and await watched.look():
                self._failures.pop((name, agent), None)
                await asyncio.sleep(_LOOK_S)
            await self._give_up([*watched.watches.values()])
        except Exception as error:
            await self._fail(name, agent, error, [*watched.watches.values()])
        finally:
            self._servers.pop(connection, None)
            with suppress(Exception):  # of a session that ends in any case
                await watched.close()

    async def _fail(self, server: str, agent: str, error: Exception, failed: list[Watch]) -> None:
        if isinstance(error, CallError) and _is_final(error):
            self._failures.pop((server, agent), None)
            for watch in failed:
                self._refuse(watch, error.text)
            return
        masker = self._context.record_maskers[server]
        what = f"changes of MCP server {server} are not received" + (f" for the agent {agent}" if agent else "")
        log = self._failures.setdefault((server, agent), OutageLog(logger, what))
        log.failed(error.operator_text if isinstance(error, NoSessionError) else describe_error(error, masker))
        await self._give_up(failed)

    async def _give_up(self, given_up: list[Watch]) -> None:
        for watch in given_up:
            self._drop(watch)
        if given_up:
            with suppress(RedisError, OSError):  # they lapse
                await self._redis.execute(*(("ZADD", keys.WATCHES, "XX", 0, each.member) for each in given_up))

    def _drop(self, watch: Watch) -> None:
        if self._held.get(watch.id) is watch:
            del self._held[watch.id]
        for server in self._servers.values():
            if watch.id in server.watches:
                server.remove(watch)

    def _refuse(self, watch: Watch, why: str) -> None:
        """End it for good. Its agent asks again, and the answer says in full why it cannot go on."""
        self._start(self._end(watch, say_nothing_of_tools(WATCH_RESOURCE, self._masked(watch, why))))

    async def _end(self, watch: Watch, why: str) -> None:
        self._drop(watch)
        channel = keys.events_channel(watch.id, watch.agent)
        with suppress(RedisError, OSError):  # its agent finds that the record is gone, and asks again
            await self._redis.execute(("PUBLISH", channel, WatchMessage(watch=watch.id, ended=why).dump()))
        await self._discard(watch)

    async def _discard(self, watch: Watch) -> None:
        self._drop(watch)
        with suppress(RedisError, OSError):  # it lapses
            await self._redis.execute(("ZREM", keys.WATCHES, watch.member), ("DEL", watch.record))

    def _report(self, watch: Watch) -> None:
        self._due[watch.id] = watch
        if self._publishing is None or self._publishing.done():
            self._publishing = self._start(self._publish())

    async def _publish(self) -> None:
        """What is reported while it pauses is published together; nothing is lost while Redis is not there."""
        outage = OutageLog(logger, "changes of resources cannot be published")
        while self._due:
            await self._dropped()
            due, self._due = self._due, {}
            said = [(watch, tuple(watch.changed), watch.is_uncertain) for watch in due.values()]
            for watch in due.values():
                watch.changed, watch.is_uncertain = {}, False
            try:
                await self._redis.execute(*map(self._message, *zip(*said, strict=True)))
                outage.succeeded()
            except (RedisError, OSError) as error:
                outage.failed(error)
                for watch, changed, is_uncertain in said:
                    watch.note(changed)
                    watch.is_uncertain = watch.is_uncertain or is_uncertain
                self._due = {**due, **self._due}
                await asyncio.sleep(_RETRY_S)
            else:
                await asyncio.sleep(_PAUSE_S)

    def _message(self, watch: Watch, changed: tuple[str, ...], is_uncertain: bool) -> tuple[str, str, bytes]:
        masker = self._context.record_maskers[watch.server]
        shown = tuple(masker.mask_start(uri, _LONGEST_URI) for uri in changed)
        message = WatchMessage(watch=watch.id, changed=shown, is_uncertain=is_uncertain)
        return "PUBLISH", keys.events_channel(watch.id, watch.agent), message.dump()

    def _masked(self, watch: Watch, why: str) -> str:
        return self._context.record_maskers[watch.server].mask_start(why, _ERROR_CHARS)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _always() -> bool:
    return True


def _is_final(error: CallError) -> bool:
    """Whether the same is true for every worker, until an operator changes something."""
    return error.outcome is Outcome.REJECTED or error.code is ErrorCode.SERVER_REMOVED

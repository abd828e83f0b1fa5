"""Takes the messages of a worker out of their queues, on the session loop.

Owns which queues it takes from, and when; `fetch_connection` has the connection on which it does so. It takes nothing
that has no free slot, and nothing while it is stopped; what becomes of a message is the caller's.

Redis says when a queue has changed (`CLIENT TRACKING`), and then one script pops and leases. A command that blocks,
such as BLMPOP, would pop a message by itself, which is lost if the worker is killed before that message has a lease,
and could not wait for other queues from then on. The price: all workers look when a message comes, and one gets it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from redis.exceptions import NoScriptError, ResponseError

from tarsy_tasks.broker import keys, steps
from tarsy_tasks.broker.deliveries import as_text
from tarsy_tasks.broker.delivery import CallState
from tarsy_tasks.broker.fetch import FetchedMessage, read_fetched
from tarsy_tasks.broker.messages import DamagedMessage
from tarsy_tasks.broker.refusal_log import RefusalLog
from tarsy_tasks.worker.process.bulkhead import Bulkhead
from tarsy_tasks.worker.process.fetch_connection import TRACK_NEXT, FetchConnection
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["MessageSink", "QueueFetcher"]

logger = logging.getLogger(__name__)

_BATCH = 16
"""The next messages are taken when these have begun to run: what a worker does not run yet, another one may."""
_LOOK_S = 10.0
"""A connection that is lost without a sign is noticed by looking."""
_REST_S = 0.01
"""After a look at sets of agents that brought nothing: names that agents add and do not use cost no more than that."""
_LEFT_OUT, _PASSED_ON = 2, 1
"""The lengths of replies without a message: calls of a server are left out, or all went on to other workers."""
_MOST_BESIDE = 4
"""If a server has no more affinity queues here, they are looked at together with its own. Another worker that took a
call of one of their sessions has moved it there a moment ago, so one look takes it; else that needs another one."""
_LEFT_OUT_S = (0.01, 0.1)
"""How soon to look again for calls that were over their limits: others may have come that are not."""


@dataclass(slots=True)
class _Receiver:
    """Takes the replies to one look."""

    set_result: Callable[[list[Any]], None]
    set_exception: Callable[[Exception], None]

    def done(self) -> bool:
        return False


class MessageSink(Protocol):
    """Where messages go. Its methods are called on the loop, and must not raise."""

    def receive(self, message: FetchedMessage) -> None: ...

    def give_back(self, message: FetchedMessage) -> None:
        """It came too late: nobody wants messages of its queue any more."""
        ...

    def spare(self) -> int:
        """How many messages there may be beside those that the pool runs."""
        ...


class QueueFetcher:
    """The fetcher of one worker process.

    Args:
        find_pool, weights, limiting, instance: As for `FetchConnection`.
        bulkhead: Says how many messages may be taken.

    `wake` may be called from any thread; all other methods run on the loop.
    """

    def __init__(
        self,
        find_pool: Callable[[], Any],
        bulkhead: Bulkhead,
        loop: SessionLoop,
        weights: Mapping[str, float] = MappingProxyType({}),
        limiting: str = "",
        instance: str = "",
    ) -> None:
        self._bulkhead = bulkhead
        self._loop = loop
        self._instance = instance
        self._connection = FetchConnection(find_pool, self._hear, self._look_at_all, weights, limiting, instance)
        self._exchange = self._connection.exchange
        self._sink: MessageSink | None = None
        self._queues: dict[str, Sequence[str]] = {}
        """Their lists, by priority; the queue that was taken from last comes last. The agents' queues of a server are
        one of them, whose name and only list is the set of these agents."""
        self._limited_as: dict[str, str] = {}
        """Of agents' queues, the queue of their server."""
        self._wakes: dict[str, str] = {}
        """Of agents' queues, the key by which this worker alone is woken."""
        self._beside: dict[str, list[str]] = {}
        """The affinity queues of this worker, by the queue of their server."""
        self._over_limits: dict[str, asyncio.TimerHandle] = {}
        """The queues of servers of which all that waits is over its limits, until some of it may be taken."""
        self._rest: asyncio.TimerHandle | None = None
        self._homes: dict[bytes, str] = {}
        self._quiet: set[str] = set()
        """The lists for other priorities than the normal one that were empty when Redis was asked to report changes: so
        they cost nothing until it does."""
        self._woken: set[str] = set()
        """The queues of which it has reported such a list since it was last asked."""
        self._changed: set[str] = set()
        """The queues in which messages may wait."""
        self._refusals = RefusalLog(logger)
        self._is_looking = False
        self._is_refused = False
        self._has_taken = False
        self._is_scheduled = False
        self._looked = asyncio.Event()
        self._look_again: asyncio.TimerHandle | None = None

    @property
    def is_taking(self) -> bool:
        """Whether it takes messages; if not, kombu does, or nobody."""
        return self._sink is not None

    @property
    def serves_agents(self) -> bool:
        """Whether it takes messages, also those in the queues of bound agents."""
        return self._sink is not None and self._connection.serves_agents

    async def start(self, sink: MessageSink, within_s: float) -> None:
        """Begin to take messages.

        Raises:
            RedisError: Redis cannot be reached, or refuses what is needed (`ResponseError`).
            TimeoutError: It could not begin in time, and has not begun.
        """
        async with asyncio.timeout(within_s):
            await self._connection.open()
        self._sink = sink
        self._connection.keep_open()
        self._bulkhead.watch(self.wake)
        self._look_everywhere()

    async def stop(self) -> None:
        """Return when no further message comes."""
        self._connection.stop_reopening()
        self._bulkhead.watch(None)
        self._queues.clear()
        self._beside.clear()
        self._changed.clear()
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        for timer in self._over_limits.values():
            timer.cancel()
        self._over_limits.clear()
        if self._look_again is not None:
            self._look_again.cancel()
        while self._is_looking:
            self._looked.clear()
            await self._looked.wait()
        self._sink = None

    def close(self) -> None:
        """Close the connection."""
        self._sink = None
        self._connection.close()

    def consume(self, queue: str, lists: Sequence[str]) -> None:
        """Take messages from a queue, too; `lists` are its keys, by priority. The agents' queues of a server come with
        that of the server."""
        server = keys.server_of_queue(queue)
        if server is not None and queue == keys.queue(server):
            agents = keys.agents_key(server)
            self._limited_as[agents] = queue
            self._add(agents, [agents])
        if keys.WORKER_MARK in queue:
            beside = self._beside.setdefault(keys.shared_queue(queue), [])
            if queue not in beside:
                beside.append(queue)
            if server and keys.agent_of_queue(queue):
                agents, wake = keys.agents_key(server), keys.wake_key(server, self._instance)
                self._wakes[agents], self._homes[wake.encode()] = wake, agents
                self._changed.add(agents)
                self._woken.add(agents)  # a look that is under way does not read the key yet
        self._add(queue, lists)
        self._look()

    def _add(self, queue: str, lists: Sequence[str]) -> None:
        self._queues[queue] = lists
        self._quiet.difference_update(lists)
        self._homes.update((each.encode(), queue) for each in lists)
        self._changed.add(queue)

    def cancel(self, queue: str) -> None:
        """Take no more messages from a queue."""
        for each in (queue, *(agents for agents, own in self._limited_as.items() if own == queue)):
            self._queues.pop(each, None)
            self._changed.discard(each)
        for beside in self._beside.values():
            if queue in beside:
                beside.remove(queue)

    def wake(self) -> None:
        """Look whether there is room again for messages that wait."""
        if self._is_scheduled or not self._changed:
            return
        self._is_scheduled = True
        self._loop.call_soon(self._look)

    async def replace_terms(self, weights: Mapping[str, float], limiting: str) -> None:
        """As `FetchConnection.replace_terms`."""
        await self._connection.replace_terms(weights, limiting)

    def _hear(self, changed: list[bytes] | None) -> None:
        for name in self._homes if changed is None else changed:
            queue = self._homes.get(name)
            if queue in self._queues:
                self._changed.add(queue)
                if (text := name.decode()) in self._quiet:
                    self._quiet.remove(text)
                    self._woken.add(queue)
        self._look()

    def _look_everywhere(self) -> None:
        if self._sink is not None:
            self._look_again = asyncio.get_running_loop().call_later(_LOOK_S, self._look_everywhere)
            if not self._exchange.is_open:
                self._connection.reopen()
            self._look_at_all()

    def _look_at_all(self) -> None:
        self._changed.update(self._queues)
        self._quiet.clear()
        self._look()

    def _look(self) -> None:
        self._is_scheduled = False
        sink = self._sink
        if self._is_looking or sink is None or not (self._changed and self._exchange.is_open):
            return
        if not self._connection.serves_agents:
            self._changed.difference_update(self._limited_as)
        # While it rests from these, the others are served alone.
        agents = self._limited_as.keys() & self._changed if self._rest is None else set[str]()
        # A server's own queue is one of the shares.
        self._changed.update(queue for each in agents if (queue := self._limited_as[each]) in self._queues)
        for server, beside in self._beside.items():
            if server in self._changed and len(beside) <= _MOST_BESIDE:
                self._changed.update(beside)
        if not (lists_changed := self._changed - self._limited_as.keys()):
            return
        slots, kept, limits = self._bulkhead.measure(lists_changed)
        if self._over_limits:
            limits.update((queue, 0) for queue in self._over_limits if queue in limits)
        limits.update((each, limits.get(self._limited_as[each], 0)) for each in agents)
        room = min(slots, _BATCH, sink.spare())
        kept = max(0, kept - slots + room)
        open_queues = [queue for queue in self._queues if queue in limits and limits[queue] > 0]
        asked = [queue for queue in open_queues if keys.is_check_queue(queue)]
        checks = len([1 for queue in asked for name in self._queues[queue] if name not in self._quiet])
        if room > kept:
            asked += [queue for queue in open_queues if not keys.is_check_queue(queue)]
        if room <= 0 or not asked:
            return
        self._is_looking = True
        lists = [(name, queue) for queue in asked for name in self._queues[queue] if name not in self._quiet]
        names = [name for name, _ in lists]
        self._woken.clear()

        # What is reported from here on may be later than what the script has seen.
        def take(replies: list[Any]) -> None:
            self._has_taken = bool(replies[0]) and len(replies[0][0]) != _LEFT_OUT
            self._changed.difference_update(asked)
            self._changed.update(self._woken)
            self._quiet.update([name for name, queue in lists if name != queue])
            self._take(replies)

        def fail(error: Exception) -> None:
            self._changed.difference_update(asked)
            self._changed.update(self._woken)
            self._fail(error)

        shares = [queue for queue in asked if queue in agents]
        (self._connection.fetch_fairly if shares else self._connection.fetch).send(
            self._exchange,
            _Receiver(take, fail),
            *names,
            limits=" ".join([str(limits[queue]) for _, queue in lists]),
            checks=checks,
            room=room,
            kept=kept,
            instance=self._instance,
        )
        # A key's next change is reported if its length was read before.
        tracked = [("STRLEN", self._wakes[each]) for each in shares if each in self._wakes] if shares else []
        first = 2 * len(tracked) + 1
        tracked += [("SCARD" if queue in agents else "LLEN", name) for name, queue in lists]
        lengths = [command for each in tracked for command in (TRACK_NEXT, each)]
        end = len(lengths)  # only workers change the shares, and a worker is woken for quiet names
        for each in shares:
            server = keys.server_of_queue(self._limited_as[each]) or ""
            lengths += [("ZCARD", keys.shares_key(server)), ("SCARD", keys.quiet_agents_key(server))]

        def learn(replies: list[Any]) -> None:
            if not self._is_refused:  # else there is no use in looking again at once
                read = [*lists, *[(each, each) for each in shares for _ in range(2)]] if shares else lists
                found = zip(read, replies[first:end:2] + replies[end:], strict=True)
                if waiting := [each for each, length in found if length]:
                    self._changed.update(queue for _, queue in waiting if queue in self._queues)
                    self._quiet.difference_update(name for name, _ in waiting)
            if shares and not self._has_taken:
                self._take_a_rest()
            self._end_look()

        self._exchange.send(_Receiver(learn, self._end_failed_look), *lengths)

    def _take(self, replies: list[Any]) -> None:
        sink = self._sink
        if sink is None:
            return
        for reply in replies[0]:
            if len(reply) == _LEFT_OUT:
                self._leave_out(as_text(reply[0]), float(reply[1]), [as_text(each[0]) for each in replies[0]])
                continue
            if len(reply) == _PASSED_ON:
                continue
            try:
                message = read_fetched(reply)
            except DamagedMessage as error:
                self._quarantine(reply, error)
                continue
            if message.delivery.state is CallState.PARKED:
                self._refusals.note(message.delivery.queue, "it has the id of a call that is parked")
                continue
            queue = message.delivery.queue
            if queue not in self._queues and keys.agent_of_queue(queue):
                queue = keys.agents_key(keys.server_of_queue(queue) or "")
            if queue in self._queues:
                self._queues[queue] = self._queues.pop(queue)
                sink.receive(message)
            else:
                sink.give_back(message)

    def _leave_out(self, queue: str, wait_s: float, taken: list[str]) -> None:
        """Calls of a server are over their limits. What was taken from it besides shows that others are not: then the
        next look is not put off."""

        def end() -> None:
            del self._over_limits[queue]
            self.wake()

        others = [keys.shared_queue(keys.without_priority(name)) for name in taken]
        if queue not in self._over_limits and others.count(queue) == 1:  # this report itself
            least_s, most_s = _LEFT_OUT_S
            timer = asyncio.get_running_loop().call_later(min(max(wait_s, least_s), most_s), end)
            self._over_limits[queue] = timer

    def _quarantine(self, reply: list[Any], damage: DamagedMessage) -> None:
        """Its lease lapses, and after a few deliveries it is a dead letter."""
        name, tag = map(as_text, reply[:2])
        logger.critical("the message %.200s from %s cannot be run: %s", tag, name, damage)
        self._exchange.send(_Receiver(_ignore, _ignore), *steps.quarantining(tag))

    def _fail(self, error: Exception) -> None:
        if isinstance(error, NoScriptError):  # somebody made Redis forget all scripts
            self._connection.reopen()
        elif isinstance(error, ResponseError):
            logger.error("messages cannot be fetched, because Redis refuses it: %s", error)
            self._is_refused = True

    def _end_failed_look(self, error: Exception) -> None:
        if isinstance(error, ResponseError):
            logger.error("messages cannot be fetched, because a queue cannot be read: %s", error)
            self._changed.clear()
        self._end_look()

    def _take_a_rest(self) -> None:
        def end() -> None:
            self._rest = None
            self.wake()

        if self._rest is None:
            self._rest = asyncio.get_running_loop().call_later(_REST_S, end)

    def _end_look(self) -> None:
        self._is_looking = self._is_refused = False
        self._looked.set()
        # The tasks of the calls that were just taken come first.
        self.wake()


def _ignore(_: Any) -> None: ...

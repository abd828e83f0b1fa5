"""The thread that renews the leases of running calls and announces every few seconds that this worker is alive.

Owns renewing, the worker's heartbeat, the sweep for messages that others lost, and moving those that are due, and
parked calls that have expired, into their queues; Redis may refuse one of these, and the others go on. It has its own
connection and does not depend on Celery's consumer, which may be reconnecting for half a minute while its calls go on.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any

from celery import states
from kombu.exceptions import KombuError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.agent_audit import AgentAuditRepair
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.leases import leased
from tarsy_tasks.broker.messages import DamagedMessage, read_entry
from tarsy_tasks.broker.parked_calls import wake_due
from tarsy_tasks.broker.session_handover import take_back
from tarsy_tasks.broker.task_failures import build_task_failure
from tarsy_tasks.errors import CallError, PoisonMessage
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.worker.reporting.audit_writer import Audit
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["LeaseKeeper"]

logger = logging.getLogger(__name__)

_RENEWALS_A_LEASE = 4
_SWEEPS_A_LEASE = 10
_STOP_S = 5.0
_PAUSE_S = 0.02
"""Between two of many steps, in which Redis serves others."""


class LeaseKeeper:
    """Keeps the leases of one worker process from `start` to `stop`.

    Args:
        app: The worker's application.
        audit: For the entries of calls that no worker runs any more.
        instance: Name of this worker process.
        servers: Ids of the servers that it serves.
        lease_s: How long a lease lasts that is not renewed.
        tend_suspended: Called every tenth of a lease or sooner, for what workers have to know of each other: which
            servers are suspended, and which asked to wait.
        on_withdrawn: Called with the ids of parked calls that were withdrawn, once nothing is kept of them here.
    """

    def __init__(
        self,
        app: Any,
        audit: Audit,
        instance: str,
        servers: Sequence[str],
        lease_s: float,
        tend_suspended: Callable[[RedisExchange], None] = lambda _: None,
        on_withdrawn: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self.instance = instance
        self._app = app
        self._audit = audit
        self._servers = tuple(servers)
        self._queues = [name(server) for server in servers for name in (keys.queue, keys.check_queue)]
        self._lease_s = lease_s
        self._tend_suspended = tend_suspended
        self._on_withdrawn = on_withdrawn
        self._channel: Any = None
        self._renew_at = self._sweep_at = 0.0
        self._recorded: set[str] = set()
        self._agent_audit = AgentAuditRepair()
        self._unavailable = OutageLog(logger, "leases cannot be renewed, because Redis is unavailable")
        self._renewing = _refusals("leases or the heartbeat cannot be renewed")
        self._sweeping = _refusals("lost messages cannot be searched for")
        self._repairing = _refusals(f"{keys.AGENT_AUDIT} cannot be repaired")
        self._suspending = _refusals("suspensions and pauses of servers cannot be shared with other workers")
        self._releasing = _refusals("delayed messages cannot be moved into their queues")
        self._waking = _refusals("parked calls that have expired cannot be answered")
        self._looks = 0
        """At parked calls."""
        self._is_departing = False
        self._left: tuple[str, ...] = ()
        """Servers that it serves no longer, which others do not know yet."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tarsy-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def depart(self) -> None:
        """The worker takes no more calls; the leases of those that it has are still renewed."""
        self._is_departing = True
        self._renew_at = 0.0

    def add(self, connection: ServerConnection) -> None:
        """As `KeptPerServer.add`: announce it with the next renewal, which is due at once."""
        server = connection.server.name
        if server not in self._servers:
            self._servers = (*self._servers, server)
            self._queues = [*dict.fromkeys([*self._queues, keys.queue(server), keys.check_queue(server)])]
            self._renew_at = 0.0

    def remove(self, server: str) -> None:
        """As `KeptPerServer.remove`. Its queues are swept as before: it may have left calls there."""
        self._servers = tuple(each for each in self._servers if each != server)
        self._left = (*self._left, server)
        self._renew_at = 0.0

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            wait_s = self._lease_s / _SWEEPS_A_LEASE / 2
            try:
                wait_s = min(wait_s, self._tend())
                self._unavailable.succeeded()
            except (RedisError, KombuError, OSError) as error:
                self._unavailable.failed(error)
                self._release_channel()
            except Exception:
                # A worker that renews nothing loses its calls to others.
                logger.exception("leases could not be renewed")
                self._release_channel()
        if self._channel is not None:
            with suppress(RedisError, OSError):
                fleet.leave(self._channel.deliveries.exchange, self.instance)
        self._release_channel()

    def _tend(self) -> float:
        """Do what is to be done now. Returns in how many seconds there is more, unless that is the usual time."""
        if self._channel is None:
            self._channel = self._app.connection_for_write().channel()
        deliveries: Deliveries = self._channel.deliveries
        if time.monotonic() >= self._renew_at:
            with _apart(self._renewing):
                self._renew(deliveries)
        with _apart(self._suspending):
            self._tend_suspended(deliveries.exchange)
        if time.monotonic() >= self._sweep_at:
            is_going_on = False
            with _apart(self._sweeping):
                is_going_on = self._sweep(deliveries)
            with _apart(self._repairing):
                is_going_on |= self._agent_audit.step(deliveries.exchange)
            self._sweep_at = 0.0 if is_going_on else time.monotonic() + self._lease_s / _SWEEPS_A_LEASE
        wait_s = inf if self._sweep_at else _PAUSE_S
        self._looks += 1
        wake_parked = partial(wake_due, deliveries.exchange, self._looks, self._on_withdrawn)
        for move, refusals in ((deliveries.release_due, self._releasing), (wake_parked, self._waking)):
            with _apart(refusals):
                due_in_s = move()
                wait_s = wait_s if due_in_s is None else min(wait_s, due_in_s)
        return max(_PAUSE_S, wait_s)

    def _renew(self, deliveries: Deliveries) -> None:
        if mine := leased.copy():
            deliveries.renew(mine.values())
        fleet.announce(deliveries.exchange, self.instance, () if self._is_departing else self._servers)
        left, self._left = self._left, ()
        departed = self._servers if self._is_departing else [each for each in left if each not in self._servers]
        fleet.depart(deliveries.exchange, self.instance, departed)
        self._renew_at = time.monotonic() + self._lease_s / _RENEWALS_A_LEASE

    def _sweep(self, deliveries: Deliveries) -> bool:
        swept = deliveries.sweep(self._lease_s, self._lease_s * fleet.QUIET, self._queues)
        if taken_back := take_back(deliveries.exchange, self._lease_s, self.instance if self._is_departing else ""):
            logger.warning("calls of isolated sessions were taken back from a lost worker: %s", taken_back)
        if swept.restored:
            logger.warning("requeued %d messages of lost workers: %s", len(swept.restored), swept.restored)
        if swept.dropped:
            logger.warning(
                "dropped %d message(s) that were in no queue of their agents: %s", len(swept.dropped), swept.dropped
            )
        for tag in set(swept.dead_letters) - self._recorded:
            self._record_dead_letter(deliveries, tag)
            self._app.backend.refuse(tag, PoisonMessage(tag))
            self._recorded.add(tag)
        self._recorded &= set(swept.dead_letters)
        for tag, queue in swept.garbage:
            entry = self._audit.write_of(tag, deliveries.entry_of(tag, queue), _never_started)
            deliveries.discard(tag, queue, entry)
            if time.monotonic() >= self._renew_at:
                break  # the next sweep finds the rest
        return swept.is_crowded

    def _record_dead_letter(self, deliveries: Deliveries, tag: str) -> None:
        def failure(what: str) -> CallError:
            return build_task_failure(tag, states.FAILURE, {"exc_type": PoisonMessage.__name__}, what)

        text, begun_before = deliveries.dead_letter_of(tag)
        if not deliveries.record_dead_letter(tag, self._audit.write_of(tag, text, failure, begun_before)):
            return  # by another worker, or by this one before it was started again
        try:
            read_entry(text)
            why = "every worker that took it was lost"
        except DamagedMessage as damage:
            why = f"it cannot be read: {damage}"
        logger.critical("message %s was moved to the dead letters: %s", tag, why)

    def _release_channel(self) -> None:
        channel, self._channel = self._channel, None
        # Renewing comes before sweeping when Redis is back.
        self._renew_at = 0.0
        if channel is not None:
            with suppress(Exception):
                channel.connection.client.release()


def _refusals(what: str) -> OutageLog:
    return OutageLog(logger, f"{what}, because Redis refuses it")


@contextmanager
def _apart(refusals: OutageLog) -> Generator[None]:
    """What Redis refuses, with the ACL rules of an older version for example, does not keep the rest from being done.
    A Redis that has become a replica refuses everything, and another one is to be connected to."""
    try:
        yield
    except ReadOnlyError:
        raise
    except ResponseError as error:
        refusals.failed(error)
    else:
        refusals.succeeded()


def _never_started(what: str) -> CallError:
    return CallError(
        ErrorCode.NOT_STARTED, f"No worker had taken {what} ten minutes after its deadline. The tool did not run."
    )

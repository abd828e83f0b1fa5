"""What all calls of one worker process share.

Owns the list, and nothing of what is in it: the pool builds one context when it starts and hands it on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tarsy_tasks.broker.async_deliveries import AsyncDeliveries
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.binding import Binding
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.policy import Policy
from tarsy_tasks.settings import Settings
from tarsy_tasks.telemetry.health_records import TakenConfiguration
from tarsy_tasks.worker.calls.quarantine import Quarantine
from tarsy_tasks.worker.maskers import Masker, build_masker
from tarsy_tasks.worker.reporting.alerts import AlertFeed
from tarsy_tasks.worker.reporting.audit_writer import Audit
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tarsy_tasks.worker.reporting.health_checks import HealthChecks
from tarsy_tasks.worker.reporting.lifecycle import Reporting
from tarsy_tasks.worker.reporting.server_lines import ServerLines
from tarsy_tasks.worker.sessions.connections import Connections
from tarsy_tasks.worker.sessions.elicitation_connections import ElicitationConnections
from tarsy_tasks.worker.sessions.session_loop import SessionLoop
from tarsy_tasks.worker.transport.child_watch import ChildWatch

__all__ = ["WorkerContext"]


@dataclass(eq=False)
class WorkerContext:
    """What all calls of one worker process share.

    Attributes:
        instance: Unique name of the worker process.
        lease_s: How long a worker counts as alive that renews nothing.
        binding: Whether agents are bound.
        loop: The event loop of all sessions and calls.
        connections: Connections to the MCP servers, by server id.
        record_maskers: The maskers for stored records, of all servers that are or were configured, by server id.
        taken: Which configuration this worker has.
        clock: That of Redis.
        in_flight: The in-flight table, for the loop.
        results: The Redis of the result backend, for the loop.
        masker: For texts that belong to no server.
        quarantine: Has calls whose workers were lost run alone.
        alerts: Passes the alerts of this worker on.
        policy: What agents may do; None without a policy.
        server_lines: The latest log lines of the servers.
        child_watch: Ends the processes of the stdio servers when this worker is lost.
        checks: The health checks, while they run.
        reporting: What the worker reports, once it is ready.
        elicitation: The connections for calls that may be asked something; None before it takes calls.
        consume_own: Takes messages also from the queue that this worker alone has beside that one, for calls that only
            it can answer; whether it can.
        task_parked_at: When a call of this worker was last parked until a task of its server is done; monotonic time.
        taking_since: When this worker began to take messages, or did so again after an outage of Redis; monotonic time.
    """

    instance: str
    lease_s: float
    settings: Settings
    binding: Binding
    loop: SessionLoop
    connections: Connections
    record_maskers: dict[str, Masker]
    taken: TakenConfiguration
    clock: RedisClock
    metrics: CallMetrics
    audit: Audit
    in_flight: AsyncDeliveries
    results: AsyncRedisExchange
    server_lines: ServerLines
    child_watch: ChildWatch
    policy: Policy | None = None
    alerts: AlertFeed = field(default_factory=AlertFeed)
    masker: Masker = field(default_factory=build_masker)
    quarantine: Quarantine = field(default_factory=Quarantine)
    checks: HealthChecks | None = None
    reporting: Reporting | None = None
    elicitation: ElicitationConnections | None = None
    consume_own: Callable[[str], bool] = lambda _: False
    task_parked_at: float = float("-inf")
    taking_since: float = float("inf")

    @property
    def has_results_elsewhere(self) -> bool:
        """Whether results are in another Redis than calls, so that no script reaches both."""
        return self.results is not self.in_flight.exchange

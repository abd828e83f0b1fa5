"""The error budgets of a worker's servers: what it counts for them, and what all workers have agreed on.

Owns the exchange with Redis, once a second and only for servers that have a budget, and the trial of a suspended server
when it is this worker's turn. Who may try it is decided in Redis (`broker.error_budget`): if that worker is lost, it is
another one's turn. What a suspended server may not do is in `sessions.connection`.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Literal

from tarsy_tasks.broker.error_budget import BudgetReport, BudgetState, tend_budgets
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["ErrorBudgets"]

_MARGIN_S = 10.0
"""A trial that takes longer than it may, by so much, has been lost with its worker."""


class ErrorBudgets:
    """The error budgets of one worker process.

    Args:
        connections: By server.
        loop: The one that the sessions live on.
        instance: Name of this worker process.
    """

    def __init__(self, connections: Mapping[str, ServerConnection], loop: SessionLoop, instance: str) -> None:
        self._connections = connections
        self._loop = loop
        self._instance = instance
        self._trials: dict[str, Future[bool]] = {}

    def tend(self, exchange: RedisExchange) -> None:
        """Called every second, in a thread. Raises `RedisError`: then what was counted since the last time is lost."""
        connections = {name: each for name, each in self._connections.items() if each.counted is not None}
        for server in self._trials.keys() - connections.keys():
            del self._trials[server]
        if not connections:
            return
        reports = [self._report(server, connection) for server, connection in connections.items()]
        for server, state in tend_budgets(exchange, self._instance, reports).items():
            self._apply(server, connections[server], state)
        for report in reports:
            # Only now: Redis knows of it.
            if report.event == "lifted":
                connections[report.server].suspension.is_lifted = False
            elif report.event:
                del self._trials[report.server]

    def _report(self, server: str, connection: ServerConnection) -> BudgetReport:
        budget, timeouts = connection.server.error_budget, connection.server.timeouts
        assert budget is not None
        assert connection.counted is not None
        return BudgetReport(
            server=server,
            max_failure_rate=budget.max_failure_rate,
            window_s=budget.window_s,
            min_calls=budget.min_calls,
            trial_s=timeouts.connect_s + timeouts.list_s + _MARGIN_S,
            may_try=not connection.is_disconnected_by_operator,
            event=self._event(server, connection),
            calls=connection.counted.take(),
        )

    def _event(self, server: str, connection: ServerConnection) -> Literal["", "answered", "silent", "lifted"]:
        if connection.suspension.is_lifted:
            return "lifted"
        trial = self._trials.get(server)
        if trial is None or not trial.done():
            return ""
        has_answered = not trial.cancelled() and trial.exception() is None and trial.result()
        return "answered" if has_answered else "silent"

    def _apply(self, server: str, connection: ServerConnection, state: BudgetState) -> None:
        if not state.reason:
            self._loop.call_soon(connection.end_shared_suspension)
            return
        self._loop.call_soon(partial(connection.suspension.share, state.reason, state.left_s))
        if state.is_prober and server not in self._trials:
            self._trials[server] = self._loop.submit(connection.try_suspended())

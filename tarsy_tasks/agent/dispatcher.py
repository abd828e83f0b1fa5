"""From a model's tool call to a message in a queue, and from the stored answer to a `ToolResult`.

Owns which calls may be sent, how they are sent and what their ending means to the agent. Both executors are thin layers
over it, one that blocks and one that awaits.
"""

import json
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tarsy_tasks.agent import results
from tarsy_tasks.agent.audit import audit_of
from tarsy_tasks.agent.idempotency import Claim, claim
from tarsy_tasks.agent.reply_listener import Meta, ReplyListener, is_refusal, listener_of
from tarsy_tasks.agent.results import read_listing, read_result
from tarsy_tasks.agent.withdrawal import Withdrawal, cancel_running, withdraw, withdraw_later
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import CallState
from tarsy_tasks.errors import BrokerUnavailable, CallError, ConfigError, ToolNameError
from tarsy_tasks.models import CallInfo, ToolCall, ToolListing, ToolResult
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.tool_names import resolve_server

if TYPE_CHECKING:
    from celery import Celery
    from tenacity import Retrying

__all__ = ["CallDispatcher", "SubmittedCall", "SubmittedListing"]

_PUBLISH_WAIT_S = 0.2
_REPLY_MARGIN = 0.1
_REPLY_MARGIN_LIMIT_S = 1.0
WITHDRAW_S = 1.0
"""How long an answer at the deadline may wait for the books to say whether the call had begun."""
_GARBAGE_S = 600.0


class SubmittedCall:
    """A call on its way.

    Attributes:
        id: The task id.
        deadline: Monotonic time after which nobody waits.
        future: Resolves to the `ToolResult`.
        server: Id of the server; empty for a call that was not sent.
        tool: Name of the tool, as far as it is known here.
        claim: Of the call's idempotency key, if it has one.
        sent_at: When it was sent, by the clock of Redis; None for a call that was not.
        is_told: The audit knows how it ended.
    """

    def __init__(
        self,
        task_id: str,
        call: ToolCall,
        deadline: float,
        future: "Future[ToolResult]",
        server: str = "",
        tool: str = "",
        claim: Claim | None = None,
        sent_at: float | None = None,
    ) -> None:
        self.id = task_id
        self.call = call
        self.deadline = deadline
        self.future = future
        self.server = server
        self.tool = tool
        self.claim = claim
        self.sent_at = sent_at
        self.is_told = False

    @property
    def is_shared(self) -> bool:
        """Somebody else sent it: it is not ours to take back."""
        return self.claim is not None and not self.claim.is_new

    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


class SubmittedListing:
    """A request for the tools of one server; `future` resolves to the listing, or raises `CallError`."""

    def __init__(self, task_id: str, server: str, future: "Future[ToolListing]") -> None:
        self.id = task_id
        self.server = server
        self.future = future


class CallDispatcher:
    """The calls of one executor.

    Args:
        servers: Ids of the servers that may be called; None for all that are configured.
        tool_filter: For some servers, the tools that may be called; an empty list means all. A selection, not security.
        timeout_s: Seconds from `send` until the answer.
        agent_id: Who asks, for the trail.
        run_id: In which run, for the trail.
        app: A Celery application whose broker and backend are the workers' Redis; None for the package's own.

    Raises:
        ValueError: A server that is not configured, or a filter for a server that is not selected.
    """

    def __init__(
        self,
        *,
        servers: Collection[str] | None,
        tool_filter: Mapping[str, Collection[str]] | None,
        timeout_s: float,
        agent_id: str | None,
        run_id: str | None,
        app: "Celery | None",
    ) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ValueError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
        self.servers = _selected_servers(servers)
        self.tool_filter = {server: frozenset(tools) for server, tools in (tool_filter or {}).items()}
        if strangers := self.tool_filter.keys() - set(self.servers):
            raise ValueError(f"tool_filter names servers that are not selected: {', '.join(sorted(strangers))}")
        self.timeout_s = timeout_s
        self._agent_id = agent_id
        self._run_id = run_id
        self._app = app

    def deadline(self) -> float:
        """Monotonic time by which a call that is made now has to be answered."""
        return time.monotonic() + self.timeout_s

    def send(self, call: ToolCall, deadline: float) -> SubmittedCall:
        """Enqueue a call. A call that cannot be right is answered at once, without a message.

        Raises:
            BrokerUnavailable: Redis could not be reached within the deadline.
            ValueError: The arguments hold something that is not JSON.
        """
        try:
            server, tool = self._resolve(call.name)
            arguments = _encode(call)
            reader = self._reader(deadline)
            task_id = reader.new_id()
            claimed = self._claim(reader, call, (server, tool, arguments), task_id, deadline)
        except CallError as error:
            answered: Future[ToolResult] = Future()
            answered.set_result(ToolResult.from_error(error, call_id=call.id, name=call.name))
            rejected = SubmittedCall("", call, deadline, answered, *_split(call.name))
            self._tell_audit(rejected, error)
            return rejected
        except BrokerUnavailable as error:
            self.tell_unsent(call, error)
            raise
        if claimed is not None and not claimed.is_new:
            future = reader.expect(claimed.task_id, lambda meta: _settle(meta, call, claimed), deadline)
            with suppress(*_connection_errors()):
                # The reader looks again.
                reader.look(claimed.task_id)
            return SubmittedCall(claimed.task_id, call, deadline, future, server, tool, claimed)
        future = reader.expect(task_id, lambda meta: _settle(meta, call, claimed), deadline)
        left_s = max(0.0, deadline - time.monotonic())
        sent_at = reader.clock.now()
        info = CallInfo(
            call_id=call.id,
            name=call.name,
            agent_id=self._agent_id,
            run_id=self._run_id,
            # The worker gives up a little earlier, so that its answer, which knows more, still arrives in time.
            deadline=sent_at + left_s - min(_REPLY_MARGIN_LIMIT_S, _REPLY_MARGIN * self.timeout_s),
            sent_at=sent_at,
        )
        sent = SubmittedCall(task_id, call, deadline, future, server, tool, claimed, sent_at)
        try:
            message = (server, tool, arguments, info.model_dump(exclude_none=True))
            self._publish(reader, task_id, "tarsy.call_tool", message, deadline)
        except BaseException:
            reader.forget(task_id, future)
            # Perhaps Redis took it just as the connection broke. And its key shall not stand for what was never sent.
            self.withdraw_later(sent, is_patient=claimed is not None)
            raise
        return sent

    def send_listing(self, server: str, deadline: float) -> SubmittedListing:
        """Ask a worker for the tools of a server.

        Raises:
            BrokerUnavailable: Redis could not be reached within the deadline.
        """
        reader = self._reader(deadline)
        task_id = reader.new_id()
        future = reader.expect(task_id, read_listing, deadline)
        try:
            self._publish(reader, task_id, "tarsy.list_tools", (server,), deadline)
        except BaseException:
            reader.forget(task_id, future)
            raise
        return SubmittedListing(task_id, server, future)

    def drop_listing(self, listing: SubmittedListing) -> None:
        """Nobody waits for this listing any more: its message shall not lie in a queue that nobody serves."""
        listener_of(self.app).forget(listing.id, listing.future)
        withdraw_later(self.app, listing.id, listing.server)

    def withdraw_later(
        self, sent: SubmittedCall, *, is_cancelled: bool = False, is_patient: bool = False
    ) -> "Future[ToolResult]":
        """The deadline has passed: take the call back if it has not begun, else cancel it.

        Args:
            is_cancelled: Its caller does not want it any more.
            is_patient: Try for a minute, if Redis is away.

        Returns:
            How it ended; Redis may hang, so whoever waits for this bounds it, and then takes `no_answer`.
        """
        asked = withdraw_later(self.app, sent.id, sent.server, is_shared=sent.is_shared, is_patient=is_patient)
        ended: Future[ToolResult] = Future()
        ended.set_running_or_notify_cancel()

        def conclude(found: "Future[Withdrawal]") -> None:
            try:
                ended.set_result(self._conclude(sent, found.result(), is_cancelled=is_cancelled))
            except Exception:
                ended.set_result(self.no_answer(sent))

        asked.add_done_callback(conclude)
        return ended

    def _conclude(self, sent: SubmittedCall, found: Withdrawal, *, is_cancelled: bool) -> ToolResult:
        if found.state is CallState.ANSWERED:
            # It was stored just now, or while Redis was away from this process.
            listener_of(self.app).look(sent.id)
            if sent.future.done():
                return sent.future.result()
        elif found.is_shared and found.state is not CallState.WITHDRAWN:
            pass
        elif found.state is CallState.BEGUN:
            cancel_running(self.app, sent.id)
        else:
            # Never begun. Whoever shared it, and had more time, may hear so only now.
            if sent.claim is not None:
                sent.claim.release()
            if is_cancelled:
                error = results.cancelled(sent.call, goes_on=False)
            else:
                error = results.not_started(sent.call, sent.server, self.timeout_s, is_served=found.is_served)
            if not found.is_taken:
                self._tell_audit(sent, error)
            return self._ended_here(sent, error)
        return self.no_answer(sent)

    def no_answer(self, sent: SubmittedCall) -> ToolResult:
        """What to answer when nothing came back, and nothing is known."""
        return self._ended_here(sent, results.no_answer(sent.call, self.timeout_s))

    def _ended_here(self, sent: SubmittedCall, error: CallError) -> ToolResult:
        listener_of(self.app).forget(sent.id, sent.future)
        return ToolResult.from_error(error, call_id=sent.call.id, name=sent.call.name, duration_s=self.timeout_s)

    def cancel(self, sent: SubmittedCall) -> None:
        """Cancel a call: in its queue, or in the MCP server if it runs. Its answer tells which.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        if not sent.id or sent.future.done():
            return
        try:
            found = withdraw(self.app, sent.id, sent.server, is_shared=sent.is_shared)
            if found.state is CallState.BEGUN and not found.is_shared:
                cancel_running(self.app, sent.id)
        except _connection_errors() as error:
            raise BrokerUnavailable(f"Redis could not be reached ({error}); the call was not cancelled.") from error
        is_over = found.state in (CallState.NONE, CallState.WITHDRAWN) or (
            found.is_shared and found.state is CallState.BEGUN
        )
        if is_over and listener_of(self.app).forget(sent.id, sent.future):
            if sent.claim is not None and not found.is_shared:
                sent.claim.release()
            error = results.cancelled(sent.call, goes_on=found.is_shared)
            if not found.is_taken:
                self._tell_audit(sent, error)
            sent.future.set_result(ToolResult.from_error(error, call_id=sent.call.id, name=sent.call.name))

    def tell_unsent(self, call: ToolCall, error: BrokerUnavailable) -> None:
        """Tell the audit of a call that could not be sent, for Redis was not there."""
        self._tell_audit(SubmittedCall("", call, 0.0, Future(), *_split(call.name)), error)

    def _tell_audit(self, sent: SubmittedCall, error: CallError | BrokerUnavailable) -> None:
        """No worker had it, or will ever have it."""
        if sent.is_told:
            return
        sent.is_told = True
        audit_of(self.app).tell(
            sent.call,
            error,
            server=sent.server,
            tool=sent.tool,
            task_id=sent.id,
            sent_at=sent.sent_at,
            agent_id=self._agent_id,
            run_id=self._run_id,
        )

    def is_selected(self, server: str, tool: str) -> bool:
        """Whether the filter lets a tool through."""
        selected = self.tool_filter.get(server)
        return not selected or tool in selected

    @property
    def app(self) -> "Celery":
        if self._app is None:
            from tarsy_tasks.celery_app import agent_app

            self._app = agent_app()
        return self._app

    def _resolve(self, name: str) -> tuple[str, str]:
        server, tool = resolve_server(name, self.servers)
        if not self.is_selected(server, tool):
            selected = ", ".join(f"{server}.{tool}" for tool in sorted(self.tool_filter[server]))
            raise ToolNameError(
                ErrorCode.TOOL_NOT_SELECTED,
                f"`{server}.{tool}` is not among the tools selected for this run. Of server `{server}` there are: "
                f"{selected}. Nothing was sent.",
            )
        return server, tool

    def _reader(self, deadline: float) -> ReplyListener:
        reader = listener_of(self.app)
        reader.wait_until_subscribed(max(0.0, deadline - time.monotonic()))
        return reader

    def _claim(
        self, reader: ReplyListener, call: ToolCall, what: tuple[str, str, str | None], task_id: str, deadline: float
    ) -> Claim | None:
        if call.idempotency_key is None:
            return None
        errors = _connection_errors()
        retrying = _retrying(errors, deadline)
        try:
            return retrying(
                claim, reader.redis, what, agent_id=self._agent_id, key=call.idempotency_key, task_id=task_id
            )
        except errors as error:
            if is_refusal(error):
                raise BrokerUnavailable(
                    f"Redis lets this user have no idempotency keys of the agent `{self._agent_id}` ({error}). The "
                    "call was not enqueued and the tool did not run. They are for the `agent_id` that is the name of "
                    "the user (docs/security.md)."
                ) from error
            raise BrokerUnavailable(f"Redis could not be reached ({error}). The call was not enqueued.") from error

    def _publish(
        self, reader: ReplyListener, task_id: str, task: str, arguments: tuple[Any, ...], deadline: float
    ) -> None:
        # Not `send_task`: it subscribes to each task a second time, synchronously.
        amqp: Any = self.app.amqp
        server, tool = arguments[0], arguments[1] if len(arguments) > 1 else None
        message = amqp.as_task_v2(
            task_id,
            task,
            args=arguments,
            argsrepr=f"{server}.{tool}" if tool else server,
            kwargsrepr="{}",
        )
        # When not even a worker that was away for long has to tell anybody that it is too late.
        message.headers["garbage_at"] = reader.clock.now() + max(0.0, deadline - time.monotonic()) + _GARBAGE_S
        pool: Any = self.app.producer_pool

        def publish() -> None:
            with pool.acquire(block=True, timeout=max(0.001, deadline - time.monotonic())) as producer:
                amqp.send_task_message(producer, task, message, queue=keys.queue(server), retry=False)

        errors = _connection_errors()
        try:
            _retrying(errors, deadline)(publish)
        except errors as error:
            if is_refusal(error):
                raise BrokerUnavailable(
                    f"Redis lets this user send nothing to the MCP server `{server}` ({error}). The call was not "
                    "enqueued and the tool did not run. An operator has to allow it (docs/security.md)."
                ) from error
            raise BrokerUnavailable(
                f"Redis could not be reached within {self.timeout_s:g} s ({error}). The call was not enqueued, "
                "unless the connection broke just as Redis took it; then it is taken back if it has not begun."
            ) from error


def _retrying(errors: tuple[type[BaseException], ...], deadline: float) -> "Retrying":
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

    return Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, errors) and not is_refusal(error)),
        stop=stop_after_delay(max(0.0, deadline - time.monotonic() - _PUBLISH_WAIT_S)),
        wait=wait_fixed(_PUBLISH_WAIT_S),
        reraise=True,
    )


def _settle(meta: Meta, call: ToolCall, claimed: Claim | None) -> ToolResult:
    result = read_result(meta, call)
    if claimed is not None and result.outcome is Outcome.UNAVAILABLE:
        # It did not run: its key may be used for another try.
        with suppress(*_connection_errors()):
            claimed.release()
    return result


def _encode(call: ToolCall) -> str | None:
    """The arguments as text: kombu's own JSON gives a meaning to some objects, those with the key `__type__`."""
    if call.arguments is None or isinstance(call.arguments, str):
        return call.arguments
    try:
        return json.dumps(call.arguments, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the arguments of {call.name} hold something that is not JSON: {error}") from error


def _split(name: str) -> tuple[str, str]:
    """Server and tool of a name that was not understood, as well as that can be."""
    server, dot, tool = name.partition(".")
    return (server, tool) if dot else ("", name)


def _connection_errors() -> tuple[type[Exception], ...]:
    from kombu.exceptions import LimitExceeded, OperationalError
    from redis.exceptions import RedisError

    return (OperationalError, LimitExceeded, RedisError, OSError)


def _selected_servers(servers: Collection[str] | None) -> list[str]:
    """The servers that an executor may call, checked against the configuration where this machine has one."""
    from tarsy_tasks.config import find_config_path, load_config

    try:
        path = find_config_path()
    except ConfigError:
        if servers is None:
            raise
        return list(servers)
    config = load_config(path)
    if servers is None:
        return list(config.enabled_servers)
    if unknown := [server for server in servers if server not in config.enabled_servers]:
        known = ", ".join(config.enabled_servers) or "none"
        raise ValueError(f"not configured in {path}, or not enabled: {', '.join(unknown)}. Servers there: {known}")
    return list(servers)

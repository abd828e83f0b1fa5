"""From a model's tool call to a message in a queue, and from the stored answer to a `ToolResult`.

Owns which calls may be sent, how they are sent and what their ending means to the agent. Both executors are thin layers
over it, one that blocks and one that awaits.
"""

import json
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from tarsy_tasks import keys
from tarsy_tasks.agent.replies import Meta, ReplyReader, reader_of
from tarsy_tasks.errors import BrokerUnavailable, CallError, ConfigError, ToolNameError
from tarsy_tasks.models import CallInfo, ToolCall, ToolListing, ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.tool_names import resolve_server

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Calls", "SentCall", "SentListing"]

_PUBLISH_WAIT_S = 0.2
_REPLY_MARGIN = 0.1
_REPLY_MARGIN_LIMIT_S = 1.0


class SentCall:
    """A call on its way.

    Attributes:
        id: The task id.
        deadline: Monotonic time after which nobody waits.
        future: Resolves to the `ToolResult`.
    """

    def __init__(self, task_id: str, call: ToolCall, deadline: float, future: "Future[ToolResult]") -> None:
        self.id = task_id
        self.call = call
        self.deadline = deadline
        self.future = future

    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


class SentListing:
    """A request for the tools of one server; `future` resolves to the listing, or raises `CallError`."""

    def __init__(self, server: str, future: "Future[ToolListing]") -> None:
        self.server = server
        self.future = future


class Calls:
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

    def send(self, call: ToolCall, deadline: float) -> SentCall:
        """Enqueue a call. A call that cannot be right is answered at once, without a message.

        Raises:
            BrokerUnavailable: Redis could not be reached within the deadline.
            ValueError: The arguments hold something that is not JSON.
        """
        try:
            server, tool = self._resolve(call.name)
        except CallError as error:
            future: Future[ToolResult] = Future()
            future.set_result(ToolResult.from_error(error, call_id=call.id, name=call.name))
            return SentCall("", call, deadline, future)
        reader = self._reader(deadline)
        task_id = reader.new_id()
        future = reader.expect(task_id, lambda meta: _read_result(meta, call), deadline)
        left_s = max(0.0, deadline - time.monotonic())
        info = CallInfo(
            call_id=call.id,
            name=call.name,
            agent_id=self._agent_id,
            run_id=self._run_id,
            # The worker gives up a little earlier, so that its answer, which knows more, still arrives in time.
            deadline=reader.clock.now() + left_s - min(_REPLY_MARGIN_LIMIT_S, _REPLY_MARGIN * self.timeout_s),
        )
        arguments = (server, tool, _encode(call), info.model_dump(exclude_none=True))
        self._publish(reader, task_id, "tarsy.call_tool", arguments, deadline)
        return SentCall(task_id, call, deadline, future)

    def send_listing(self, server: str, deadline: float) -> SentListing:
        """Ask a worker for the tools of a server.

        Raises:
            BrokerUnavailable: Redis could not be reached within the deadline.
        """
        reader = self._reader(deadline)
        task_id = reader.new_id()
        future = reader.expect(task_id, _read_listing, deadline)
        self._publish(reader, task_id, "tarsy.list_tools", (server,), deadline)
        return SentListing(server, future)

    def give_up(self, sent: SentCall) -> ToolResult:
        """The deadline has passed: cancel the call, and answer it here."""
        reader_of(self.app).forget(sent.id)
        self.cancel_later(sent)
        error = CallError(
            ErrorCode.NO_ANSWER,
            f"`{sent.call.name}` was not answered within {self.timeout_s:g} s. Either no worker serves its queue, "
            "or the tool is still running and may have had its effect. Look at its effects before you call it again.",
        )
        return ToolResult.from_error(error, call_id=sent.call.id, name=sent.call.name, duration_s=self.timeout_s)

    def cancel(self, sent: SentCall) -> None:
        """Cancel a call: in its queue, or in the MCP server if it runs. Its answer tells which.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        if not sent.id or sent.future.done():
            return
        try:
            self.app.control.revoke(sent.id, terminate=True)
        except _connection_errors() as error:
            raise BrokerUnavailable(f"Redis could not be reached ({error}); the call was not cancelled.") from error

    def cancel_later(self, sent: SentCall) -> None:
        """Cancel a call without waiting for it, as well as can be: Redis may be what is gone."""

        def cancel() -> None:
            with suppress(BrokerUnavailable):
                self.cancel(sent)

        threading.Thread(target=cancel, name="tarsy-cancel", daemon=True).start()

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

    def _reader(self, deadline: float) -> ReplyReader:
        reader = reader_of(self.app)
        reader.wait_until_subscribed(max(0.0, deadline - time.monotonic()))
        return reader

    def _publish(
        self, reader: ReplyReader, task_id: str, task: str, arguments: tuple[Any, ...], deadline: float
    ) -> None:
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

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
        pool: Any = self.app.producer_pool

        def publish() -> None:
            with pool.acquire(block=True, timeout=max(0.001, deadline - time.monotonic())) as producer:
                amqp.send_task_message(producer, task, message, queue=keys.queue(server), retry=False)

        errors = _connection_errors()
        retrying = Retrying(
            retry=retry_if_exception_type(errors),
            stop=stop_after_delay(max(0.0, deadline - time.monotonic() - _PUBLISH_WAIT_S)),
            wait=wait_fixed(_PUBLISH_WAIT_S),
            reraise=True,
        )
        try:
            retrying(publish)
        except BaseException as error:
            reader.forget(task_id)
            if isinstance(error, errors):
                raise BrokerUnavailable(
                    f"Redis could not be reached within {self.timeout_s:g} s ({error}). The call was not enqueued, "
                    "unless the connection broke just as Redis took it."
                ) from error
            raise


def _encode(call: ToolCall) -> str | None:
    """The arguments as text: kombu's own JSON gives a meaning to some objects, those with the key `__type__`."""
    if call.arguments is None or isinstance(call.arguments, str):
        return call.arguments
    try:
        return json.dumps(call.arguments, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the arguments of {call.name} hold something that is not JSON: {error}") from error


def _connection_errors() -> tuple[type[Exception], ...]:
    from kombu.exceptions import LimitExceeded, OperationalError
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import TimeoutError as RedisTimeoutError

    return (OperationalError, LimitExceeded, RedisConnectionError, RedisTimeoutError, OSError)


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


def _read_result(meta: Meta, call: ToolCall) -> ToolResult:
    """The answer that a worker stored, or the one that tells what became of the task."""
    if meta["status"] == "SUCCESS":
        try:
            return ToolResult.model_validate(meta["result"])
        except ValidationError:
            error = CallError(
                ErrorCode.INTERNAL_ERROR,
                f"The stored answer to `{call.name}` cannot be read: is the worker of another version? "
                "The tool may have run.",
            )
    elif meta["status"] == "REVOKED":
        error = CallError(
            ErrorCode.CANCELLED, f"`{call.name}` was cancelled. If it had begun, the MCP server was told to stop."
        )
    else:
        error = _task_failure(meta, f"`{call.name}`", " The tool may have run.")
    return ToolResult.from_error(error, call_id=call.id, name=call.name)


def _read_listing(meta: Meta) -> ToolListing:
    if meta["status"] != "SUCCESS":
        raise _task_failure(meta, "the list of tools", "")
    try:
        error = meta["result"]["error"]
        if error is not None:
            raise CallError(ErrorCode(error["code"]), error["text"])
        return ToolListing.model_validate(meta["result"])
    except (ValueError, TypeError, KeyError) as error:
        raise CallError(ErrorCode.INTERNAL_ERROR, f"The stored list of tools cannot be read: {error!r:.200}") from None


def _task_failure(meta: Meta, what: str, then: str) -> CallError:
    """What a task that failed in Celery's sense means to the agent; `then` ends the text."""
    result: Any = meta.get("result")
    kind = str(cast("dict[str, Any]", result).get("exc_type")) if isinstance(result, dict) else "no result"
    if kind == "TimeLimitExceeded":
        return CallError(ErrorCode.TIME_LIMIT, f"Celery's hard time limit ended {what}.{then}")
    if kind == "WorkerLostError":
        return CallError(ErrorCode.WORKER_LOST, f"The worker was lost while it ran {what}.{then}")
    return CallError(ErrorCode.INTERNAL_ERROR, f"The worker failed on {what} ({kind}); its log says why.{then}")

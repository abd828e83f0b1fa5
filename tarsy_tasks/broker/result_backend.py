"""Celery's Redis result backend: an answer, the acknowledgement of its call and its audit entry are stored together,
and an outage of Redis loses none.

Owns what the project changes in the result backend; every application of the package uses it for `redis://` URLs.
"""

import itertools
import json
import logging
import threading
from collections.abc import Callable
from datetime import datetime
from functools import cached_property, partial
from typing import Any, cast

from celery import states
from celery.backends import redis as celery_redis
from celery.backends.redis import RedisBackend
from celery.canvas import group
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_when_event_set,
    wait_random_exponential,
)

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.confinement import current_confinement
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.kombu_transport import broker_pool
from tarsy_tasks.broker.large_results import LargeWrite, NotKeptError
from tarsy_tasks.broker.received_json import read_json
from tarsy_tasks.broker.redis_errors import ErrorKind, classify_error
from tarsy_tasks.broker.results_elsewhere import store_answer
from tarsy_tasks.broker.typed_values import restore_values
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["ResultBackend"]

logger = logging.getLogger(__name__)

_RETRY_LIMIT_S = 2.0
_REFUSALS = 4
_IMPATIENT_RETRIES = 2
_ENDINGS = (states.SUCCESS, states.FAILURE, states.REVOKED)


_stock_consumer: Any = cast("Any", celery_redis).ResultConsumer


class _ResultConsumer(_stock_consumer):
    """Takes a subscription back without waiting for Redis.

    The garbage collector does that for every `AsyncResult`, in any thread. Stock reconnects first: for 19 s if Redis is
    away, and then fails. Here who waits for a result does that, and so learns which results have come meanwhile.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        stock: Any = super()
        stock.__init__(*args, **kwargs)
        self._cancelling = threading.local()
        self._is_lost = False

    def cancel_for(self, task_id: str) -> None:
        stock: Any = super()
        self._cancelling.now = True
        try:
            stock.cancel_for(task_id)
        finally:
            self._cancelling.now = False

    def _reconnect(self) -> None:
        stock: Any = super()
        if getattr(self._cancelling, "now", False):
            self._is_lost = True
            return
        stock._reconnect()
        self._is_lost = False

    def drain_events(self, timeout: float | None = None) -> None:
        stock: Any = super()
        if self._is_lost:  # redis-py would open the connection, but nobody would look for results
            self._reconnect()
        stock.drain_events(timeout=timeout)


class ResultBackend(RedisBackend):
    """Stores a result without reading the stored one first, and does not give up while Redis is unavailable.

    Stock reads it so that a failure never replaces a success, which costs a round trip per call; here the in-flight
    table ensures that the first answer stays, or `results_elsewhere` does. Stock also gives up after 20 attempts, and
    the result is lost.

    Attributes:
        stopping: Set by a worker that no longer waits for Redis. None in other processes, which wait as stock does.
    """

    ResultConsumer = _ResultConsumer
    stopping: threading.Event | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience = threading.local()

    def build_client(self, timeout_s: float) -> Any:
        """A redis-py client that gives up after so long, for callers that have a timeout of their own."""
        timeouts = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        return self._create_client(**{**self.connparams, **timeouts})

    def retry_until_stopped(self) -> None:
        """From now on this thread waits with a result until Redis takes it. Not for a thread that others wait for."""
        self._patience.is_endless = True

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        try:
            return self._store(task_id, result, state, traceback, request, **kwargs)
        except RedisError as error:
            if not isinstance(result, ToolResult) or (self.stopping is not None and self.stopping.is_set()):
                raise
            logger.error("the result of %s cannot be stored: %s", task_id, error)  # noqa: TRY400
            self._store(task_id, _unstorable(result, error), state, traceback, request, **kwargs)
            return result

    def _store(self, task_id: str, result: Any, state: str, traceback: Any, request: Any, **kwargs: Any) -> Any:
        confinement = current_confinement()
        if confinement is not None and task_id != confinement.tag:
            encoded = self._encode_meta(task_id, result, state, traceback, request)
            self._store_unless_known(task_id, confinement.queue, *encoded)
            return result
        delivery: Delivery | None = getattr(request, "delivery", None)
        call = delivery if delivery is not None and delivery.tag == task_id else None
        try:
            if state != states.SUCCESS and (call is None or state not in _ENDINGS):
                return super()._store_result(task_id, result, state, traceback, request, **kwargs)
            large = call.large_of(result) if call is not None else None
            encode = partial(self._encode_meta, task_id, state=state, traceback=traceback, request=request)
            try:
                self._store_answer(call, encode(result), state, result, large)
            except (NotKeptError, RedisError, OSError) as error:
                if large is None:
                    raise
                self._store_answer(call, encode(large.give_up(error)), state, large.refused, None)
        except BaseException:
            if delivery is not None:
                # The call is delivered again when its lease has lapsed, and not lost.
                delivery.kept = True
            raise
        else:
            if delivery is not None:
                delivery.kept = False
        return result

    def _store_answer(
        self, call: Delivery | None, encoded: tuple[str, str], state: str, result: Any, large: LargeWrite | None
    ) -> None:
        key, value = encoded
        if call is None:
            self._set_with_state(key, value, state)
            return
        if not self._is_the_broker:
            self.ensure(self._store_elsewhere, (call, key, value, large))
            return
        entry = call.record.write(state, result, len(value)) if call.record is not None else None
        answer = (call, key, value, self.expires, entry)
        if large is None:
            self.ensure(self._deliveries.answer, answer)
        else:
            self.ensure(self._deliveries.answer_large, (*answer, large))
        call.answered = True

    def _store_elsewhere(self, call: Delivery, key: str, value: str, large: LargeWrite | None) -> None:
        try:
            if not self._deliveries_of_broker.may_answer(call):
                return
        except (RedisError, OSError) as error:
            logger.warning("it is not known whether another worker has answered %s: %s", call.tag, error)
        if large is not None:
            large.keep(self._exchange, self.expires)
        channel = keys.reply_channel(call.tag, keys.agent_of_queue(call.queue))
        store_answer.run(self._exchange, key=key, result=value, ttl_s=self.expires or 0, channel=channel)

    def _store_unless_known(self, task_id: str, queue: str, key: str, value: str) -> None:
        """For a message of a bound agent, which names the ids of what follows it: no answer of another call may be
        replaced or taken away. What has no answer yet, and is not on its way, gets this one.
        """
        if self._is_the_broker:
            self.ensure(self._deliveries.store_unless_known, (task_id, queue, key, value, self.expires))
        else:
            logger.warning(
                "no result was stored for %s: only the broker knows whether it is another agent's call", task_id
            )

    def _restore_group(self, group_id: Any) -> Any:
        """Nothing, for a message of a bound agent: agents can write the state of groups, and it names any task."""
        stock: Any = super()
        return None if current_confinement() is not None else stock._restore_group(group_id)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """The same: what an agent wrote there may be nothing that can be counted, and then its chord has no end."""
        stock: Any = super()
        try:
            stock.on_chord_part_return(request, state, result, **kwargs)
        except ResponseError as error:
            if current_confinement() is None or classify_error(error) is not ErrorKind.WRONG:
                raise
            text = "the chord of %s cannot continue, because its state in Redis is damaged: %s"
            logger.error(text, request.id, error)  # noqa: TRY400

    def _call_task_errbacks(self, request: Any, exc: BaseException, traceback: Any) -> None:
        """For a message of a bound agent all are sent. Stock runs some of them here, without a message of their own."""
        if current_confinement() is None:
            stock: Any = super()
            stock._call_task_errbacks(request, exc, traceback)
            return
        errbacks = group(list(request.errbacks), app=self.app)
        errbacks.apply_async((request.id,), parent_id=request.id, root_id=request.root_id or request.id)

    def _handle_group_chord_error(self, group_callback: Any, backend: Any, exc: Any = None) -> Any:
        """For a message of a bound agent nothing is revoked. Stock sends that command last, and takes its refusal for a
        failure of all that it has done."""
        if current_confinement() is not None:
            group_callback.freeze = partial(_freeze_unrevoked, group_callback.freeze)
        stock: Any = super()
        return stock._handle_group_chord_error(group_callback, backend, exc)

    def refuse(self, task_id: str, error: Exception) -> None:
        """Store that a dead letter failed, unless it has a result or is retried; for threads that must not wait for
        Redis."""
        key, value = self._encode_meta(task_id, self.prepare_exception(error), states.FAILURE)
        if self._is_the_broker:
            self._deliveries.refuse(task_id, key, value, self.expires)
            return
        lifetime = ("EX", self.expires) if self.expires else ()
        if self._exchange.execute(("SET", key, value, "NX", *lifetime))[0] is not None:
            self._exchange.execute(*_announcements(key, value))

    def _encode_meta(self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None) -> Any:
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        return self.get_key_for_task(task_id), self.encode({**meta, "task_id": task_id})

    def encode_answer(self, task_id: str, result: ToolResult) -> tuple[str, bytes]:
        """The key and the value of the stored answer to a call that nothing follows, as `_encode_meta` writes it."""
        rest = (
            ', "traceback": null, "children": [], '
            f'"date_done": "{datetime.now(self.app.timezone).isoformat()}", "task_id": {json.dumps(task_id)}}}'
        )
        # Not `model_dump_json`, which decodes what is encoded again then: a result may have a megabyte.
        dumped = result.__pydantic_serializer__.to_json(result)
        return keys.result_key(task_id), b"".join((b'{"status": "SUCCESS", "result": ', dumped, rest.encode()))

    def decode(self, payload: Any) -> Any:
        """Read a result, in plain JSON and what `restore_values` makes of it, and unpack nothing that this application
        would not compress itself."""
        if payload is None or self.serializer != "json" or self.compression:
            stock: Any = super()
            return stock.decode(payload)
        found = read_json(payload, most_values=None)  # this package's own are bounded; those of users need not be
        return restore_values(payload, found)

    def ensure(self, fun: Callable[..., Any], args: tuple[Any, ...], **policy: Any) -> Any:
        if self.stopping is None:
            return super().ensure(fun, args, **policy)
        if not getattr(self._patience, "is_endless", False):
            try:
                return super().ensure(fun, args, **{"max_retries": _IMPATIENT_RETRIES, **policy})
            except ResponseError as error:
                if classify_error(error) is ErrorKind.WRONG:
                    raise
                # In the thread of the consumer any other error ends the worker, with all that it runs.
                raise RedisConnectionError(f"Redis refuses the result: {error}") from error
        try:
            return fun(*args)
        except (RedisError, OSError) as error:
            if classify_error(error) is ErrorKind.WRONG:
                raise
            logger.warning("Redis cannot store a result, trying again: %s", error)
        refusals = itertools.count(1)

        def may_pass(error: BaseException) -> bool:
            if classify_error(error) is ErrorKind.WRONG:
                return False
            # Redis closes the connection on a value that is too large for it each time, and is fine otherwise.
            return not (isinstance(error, self.connection_errors) and self._answers() and next(refusals) >= _REFUSALS)

        retrying = Retrying(
            retry=retry_if_exception(may_pass),
            wait=wait_random_exponential(multiplier=0.1, max=_RETRY_LIMIT_S),
            stop=stop_when_event_set(self.stopping),
            sleep=sleep_using_event(self.stopping),
            after=_log_failure,
            reraise=True,
        )
        return retrying(fun, *args)

    def _answers(self) -> bool:
        try:
            self._exchange.execute(("PING",))
        except (RedisError, OSError):  # one that cannot save refuses even this
            return False
        return True

    def _set(self, key: Any, value: Any, expires: int | None = None) -> None:
        """Store and announce. Stock does it in MULTI, with SETEX, about which redis-py warns on every call."""
        lifetime_s = self.expires if expires is None else expires
        store = ("SET", key, value, "EX", lifetime_s) if lifetime_s else ("SET", key, value)
        self._exchange.execute(store, *_announcements(key, value))

    @cached_property
    def _exchange(self) -> RedisExchange:
        return RedisExchange(self.client.connection_pool)

    @cached_property
    def _deliveries(self) -> Deliveries:
        return Deliveries(lambda: self._exchange)

    @cached_property
    def _deliveries_of_broker(self) -> Deliveries:
        return Deliveries(lambda: RedisExchange(broker_pool(self.app)))

    @cached_property
    def _is_the_broker(self) -> bool:
        return self.app.conf.broker_url == self.app.conf.result_backend


def _freeze_unrevoked(freeze: Callable[[], Any]) -> Any:
    frozen = freeze()

    def revoke() -> None:
        logger.warning("the tasks of the group %s, the body of a chord that has failed, are not revoked", frozen.id)

    frozen.revoke = revoke
    return frozen


def _announcements(key: str | bytes, value: str | bytes) -> list[tuple[Any, ...]]:
    """For those who wait with Celery, by the key; and for the agents of this package, by the id of the task."""
    name = key if isinstance(key, str) else key.decode()
    announcements: list[tuple[Any, ...]] = [("PUBLISH", name, value)]
    if name.startswith(keys.result_key("")):
        confinement = current_confinement()
        agent = keys.agent_of_queue(confinement.queue) if confinement is not None else ""
        channel = keys.reply_channel(name.removeprefix(keys.result_key("")), agent)
        announcements.append(("PUBLISH", channel, value))
    return announcements


def _log_failure(state: RetryCallState) -> None:
    if state.attempt_number % 10 == 0 and state.outcome is not None:
        logger.warning("Redis still cannot store a result after %.0f s: %s", state.idle_for, state.outcome.exception())


def _unstorable(result: ToolResult, error: Exception) -> ToolResult:
    """What is stored in place of a result that Redis refuses."""
    code = ErrorCode.RESULT_TOO_LARGE
    text = (
        f"`{result.name}` ended with `{result.outcome}`, but Redis did not accept its result of {len(result.content)} "
        f"characters ({type(error).__name__}). Ask for less: a filter, a limit or a page."
    )
    update = {"content": text, "structured": None, "attachments": (), "outcome": code.outcome, "error_code": code}
    return result.model_copy(update=update)

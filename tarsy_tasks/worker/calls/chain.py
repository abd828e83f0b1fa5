"""How a call passes through interceptors.

Runs a call through a list of interceptors, and loads those of the users by their entry points. A user's interceptor
that fails ends its call and is named; one that blocks the event loop is named. Which interceptors there are, and in
which order, is in `interceptors`; their interface is `tarsy_tasks.interceptors`.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Any, cast, get_args

from tarsy_tasks.errors import CallError, ConfigError
from tarsy_tasks.interceptors import Answer, Call, Dropped, Ending, Interceptor, Parked, Proceed, Requeued, Stage
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["ENTRY_POINTS", "Interceptors", "Step", "load_interceptors", "run_through"]

logger = logging.getLogger(__name__)

ENTRY_POINTS = "tarsy_tasks.interceptors"
"""The group of entry points in which users install their interceptors."""
_BLOCKING_S = 0.05
_REPORT_S = 60.0
"""How often an interceptor that blocks is named again."""

Step = Callable[[Any, Proceed], Awaitable[Ending]]


def run_through(steps: Sequence[Step], call: Call, innermost: Proceed, index: int = 0) -> Awaitable[Ending]:
    """Pass a call through interceptors, the first one outermost."""
    if index == len(steps):
        return innermost()
    return steps[index](call, partial(run_through, steps, call, innermost, index + 1))


class Interceptors:
    """The interceptors of a worker, by stage, each in order.

    Args:
        own: The package's own that come first in their stages.
        users: Those of the users.
        last: The package's own that come last: what has to happen right before a call is sent.
    """

    def __init__(self, own: Iterable[Any], users: Iterable[Interceptor], last: Iterable[Any]) -> None:
        everyone = [*own, *map(UserInterceptor, users), *last]
        self.message, self.call, self.attempt = (
            tuple(each for each in everyone if each.stage == stage) for stage in get_args(Stage)
        )


def load_interceptors(names: Sequence[str]) -> list[Interceptor]:
    """The interceptors of the users that the configuration lists, in its order.

    Raises:
        ConfigError: One is not installed, cannot be loaded, or is not an interceptor.
    """
    found = {each.name: each for each in entry_points(group=ENTRY_POINTS)} if names else {}
    loaded: list[Interceptor] = []
    for name in names:
        if name not in found:
            installed = ", ".join(sorted(found)) or "none"
            raise ConfigError(
                f"interceptors: {name!r} is not installed. Installed entry points in {ENTRY_POINTS}: {installed}."
            )
        try:
            value: Any = found[name].load()
            interceptor: Any = value() if isinstance(value, type) else value
        except Exception as error:
            raise ConfigError(f"interceptors: {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
        stage, call = getattr(interceptor, "stage", None), getattr(interceptor, "__call__", None)  # noqa: B004
        if not inspect.iscoroutinefunction(call) or stage not in get_args(Stage):
            stages = ", ".join(get_args(Stage))
            raise ConfigError(
                f"interceptors: {name!r} is not an interceptor: it needs an async `__call__(call, proceed)`, and a "
                f"`stage` that is one of {stages} (found {stage!r})."
            )
        interceptor.name = name
        loaded.append(interceptor)
    return loaded


class UserInterceptor:
    """An interceptor of a user. What goes wrong in it ends its call, with its name in the text."""

    def __init__(self, interceptor: Interceptor) -> None:
        self.name, self.stage = interceptor.name, interceptor.stage
        self._interceptor = interceptor
        self._reported_at = float("-inf")

    async def __call__(self, call: Any, proceed: Proceed) -> Ending:
        inner: list[BaseException | Ending] = []
        proceeds = False

        async def go_on() -> Ending:
            nonlocal proceeds
            if proceeds:
                raise RuntimeError("it called proceed() again before the first proceed() had ended")
            if _must_not_be_repeated(call):
                raise RuntimeError("it called proceed() again for a call that may have run and must not be repeated")
            proceeds = True
            try:
                ending = await _Timed(proceed())
            except BaseException as error:
                inner.append(error)
                raise
            finally:
                proceeds = False
            if isinstance(ending, Parked):
                inner.append(ending)
            return ending

        try:
            ending = await _Timed(self._interceptor(call, go_on), self._blocked)
        except CallError:
            raise
        except BaseException as error:  # a SystemExit would end the event loop
            if error in inner or isinstance(error, GeneratorExit):
                raise  # it comes from further inside
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise  # not of something else that the interceptor awaited
            logger.exception("the interceptor %s failed on %s.%s", self.name, call.server, call.tool)
            raise self._failed(call, type(error).__name__) from error
        if isinstance(ending, Parked) and not any(ending is each for each in inner):
            logger.error("the interceptor %s parked a call", self.name)
            raise self._failed(call, "it parked a call")
        if not isinstance(ending, Answer | Parked | Requeued | Dropped):  # pyright: ignore[reportUnnecessaryIsInstance]
            logger.error("the interceptor %s returned %s instead of an Ending", self.name, type(ending).__name__)
            raise self._failed(call, "it did not return an Ending")
        if isinstance(ending, Requeued) and _must_not_be_repeated(call):
            logger.error("the interceptor %s requeued a call that must not be repeated", self.name)
            raise self._failed(call, "it requeued a call that must not be repeated")
        return ending

    def _failed(self, call: Any, why: str) -> CallError:
        call.is_closed = True  # a task of the interceptor may still be on its way to send it
        if call.may_have_run:
            code, ran = ErrorCode.INTERNAL_ERROR, "The tool may have run. Check its effects before you call it again."
        else:
            code, ran = (
                ErrorCode.INTERCEPTOR_FAILED,
                "The tool did not run. Tell the user that an operator must fix it.",
            )
        return CallError(
            code, f"The worker's interceptor `{self.name}` failed on `{call.server}.{call.tool}` ({why}). {ran}"
        )

    def _blocked(self, seconds: float) -> None:
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_S:
            self._reported_at = now
            logger.warning(
                "the interceptor %s blocked the event loop, which all calls share, for %.0f ms. Await instead of "
                "blocking, or run blocking code with call.run_blocking.",
                self.name,
                seconds * 1000,
            )


def _must_not_be_repeated(call: Any) -> bool:
    """Whether a call was sent, may have run, and is not harmless to repeat."""
    return call.attempts and call.may_have_run and not call.may_replay


def _is_cancelled() -> bool:
    """Whether somebody cancelled the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Timed:
    """Awaits a coroutine and reports when one of its steps blocks the loop, not counting what is timed further inside.

    Args:
        report: Called with the seconds of such a step; None: it only counts for others.
    """

    _nested_s = 0.0
    """Time that steps further inside took, within the step that runs now."""

    def __init__(self, coroutine: Awaitable[Ending], report: Callable[[float], None] | None = None) -> None:
        self._coroutine = coroutine
        self._report = report

    def __await__(self) -> Generator[Any, Any, Ending]:
        steps = self._coroutine.__await__()
        act: Callable[[], Any] = partial(next, steps)
        while True:
            outer_s, _Timed._nested_s = _Timed._nested_s, 0.0
            began = time.perf_counter()
            try:
                yielded = act()
            except StopIteration as stop:
                return stop.value
            finally:
                took_s = time.perf_counter() - began
                own_s, _Timed._nested_s = took_s - _Timed._nested_s, outer_s + took_s
                if self._report is not None and own_s >= _BLOCKING_S:
                    self._report(own_s)
            try:
                sent = yield yielded
            except BaseException as error:
                act = partial(cast("Any", steps).throw, error)
            else:
                act = partial(cast("Any", steps).send, sent)

"""A watch in its agent's process: it may end, and be dropped, at any moment; and one never holds up the others."""

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

from tarsy_tasks import AsyncResourceWatch, ErrorCode, OutcomeError, ResourceWatch, ToolResult
from tarsy_tasks.agent.background import call_in_background, run_in_background
from tarsy_tasks.agent.resource_watch import Watched
from tarsy_tasks.agent.watch_keeper import WatchKeeper, keeper_of
from tarsy_tasks.broker import keys, watches
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.celery_app import TarsyApp
from tarsy_tasks.errors import CallError, RateLimited
from tarsy_tasks.resources import WatchMessage
from tests.processes import wait_until

URI = "notice://board/today"
ANSWER = SimpleNamespace(raise_for_outcome=lambda: None)
pytestmark = pytest.mark.keeps_keys


class Calls:
    """In the place of a dispatcher: calls that the test answers."""

    timeout_s = 20.0

    def __init__(self, app: TarsyApp) -> None:
        self.asked: list[Any] = []
        self.find_app = lambda: app

    def request(self, *_: object) -> Any:
        self.asked.append(SimpleNamespace(id=f"watch-{len(self.asked)}", answered=Future[Any]()))
        return self.asked[-1]

    def abandon(self, calls: list[Any]) -> None: ...


class Kept:
    """What a keeper keeps, with what it was told."""

    def __init__(self, name: str, heard: Callable[[], object] = lambda: None) -> None:
        self.id = name
        self.uncertain = self.asked = 0
        self.goes_on: Future[bool] = Future()
        self._heard = heard

    def hear(self, message: WatchMessage) -> None: ...

    def note_uncertain(self) -> None:
        self.uncertain += 1
        self._heard()

    def end(self, error: Exception) -> None: ...

    async def begin_again(self) -> bool:
        self.asked += 1
        return await asyncio.wrap_future(self.goes_on)


@pytest.fixture
def calls(app: TarsyApp) -> Calls:
    return Calls(app)


@pytest.fixture
def watched(calls: Calls) -> Iterator[Watched]:
    watched = Watched(calls, "board", URI)
    yield watched
    watched.end()


class Keeping:
    """The keeper of an application, and its connection to Redis."""

    def __init__(self, app: TarsyApp, client: Any) -> None:
        self.keeper: WatchKeeper = keeper_of(app)
        self.kept: list[Kept] = []
        self._client = client
        run_in_background(self.keeper.open(20)).result()

    def keep(self, watch: Kept, losses: int | None = None, *, is_recorded: bool = True) -> Kept:
        self.kept.append(watch)
        if is_recorded:
            self._client.set(keys.watch_key("", watch.id), "x")
        losses = self.keeper.losses if losses is None else losses
        call_in_background(lambda: self.keeper.add(watch, losses))
        return watch

    def lose_connection(self) -> None:
        before = self.keeper.losses
        self._client.client_kill_filter(_type="pubsub")
        wait_until(lambda: self.keeper.losses > before, "the connection is lost")


@pytest.fixture
def keeping(app: TarsyApp, client: Any) -> Iterator[Keeping]:
    keeping = Keeping(app, client)
    yield keeping
    for each in keeping.kept:
        each.goes_on.cancel()
        call_in_background(lambda watch=each: keeping.keeper.remove(watch))


def test_a_watch_that_has_ended_hears_nothing_more(watched: Watched) -> None:
    watch = ResourceWatch(watched)
    watch.close()
    watched.hear(WatchMessage(watch="watch", changed=(URI,), is_uncertain=True))
    assert list(watch) == []


def test_a_watch_may_end_while_it_is_begun_again(calls: Calls, watched: Watched) -> None:
    beginning = run_in_background(watched.begin_again())
    wait_until(lambda: calls.asked, "it asks")
    watched.end()
    calls.asked[0].answered.set_result(ANSWER)
    assert beginning.result(20)
    assert watched.take(Future()) is None


@pytest.mark.parametrize(
    ("error", "patience_s", "ends"),
    [
        (CallError(ErrorCode.NO_CREDENTIAL, "none"), 60, True),
        (CallError(ErrorCode.SERVER_REMOVED, "gone"), 60, True),
        (CallError(ErrorCode.SERVER_ERROR, "no such notice"), 60, True),
        (CallError(ErrorCode.NO_WORKER, "none serves it"), 60, False),
        (CallError(ErrorCode.NO_WORKER, "none serves it"), 0, True),
        (RateLimited("too many", 1.0), 60, False),
    ],
)
def test_a_watch_ends_with_what_is_answered(calls: Calls, error: CallError, patience_s: float, *, ends: bool) -> None:
    """When workers have ended it: what may change is asked again, for a while."""
    watched = Watched(calls, "board", URI, patience_s=patience_s)
    beginning = run_in_background(watched.begin_again())
    wait_until(lambda: calls.asked, "it asks")
    calls.asked[0].answered.set_result(ToolResult.from_error(error, call_id="", name=""))
    assert beginning.result(20) is ends
    if ends:
        with pytest.raises(OutcomeError) as ended:
            watched.take(Future())
        assert ended.value.result.error_code is error.code
    watched.end()


def test_a_watch_may_be_collected_wherever_a_thread_is(watched: Watched) -> None:
    """Also where it has the lock."""

    def collect() -> None:
        watch: list[Any] = [ResourceWatch(watched)]
        watch.append(watch)
        with watched._lock:
            del watch
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    wait_until(lambda: watched.take(Future()) is None, "it has ended")


def test_waits_that_are_given_up_leave_nothing(watched: Watched) -> None:
    """On whichever event loop."""
    watch, waits = AsyncResourceWatch(watched), list[Any]()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.001)
        waits.append(ref(watched._waiting))

    async def read() -> bool:
        return (await anext(watch)).is_certain

    for _ in range(5):
        asyncio.run(give_up())
    gc.collect()
    assert [wait() is not None for wait in waits] == [False] * 4 + [True]
    watched.note_uncertain()
    assert not asyncio.run(read())


def test_a_second_reader_is_refused(watched: Watched) -> None:
    async def read_twice() -> None:
        watch = AsyncResourceWatch(watched)
        first, second = (asyncio.create_task(anext(watch)) for _ in range(2))
        with pytest.raises(RuntimeError, match="another thread or task"):
            await second
        watched.note_uncertain()
        assert not (await first).is_certain
        watched.end()
        with pytest.raises(StopAsyncIteration):
            await anext(watch)

    asyncio.run(read_twice())


def test_a_second_thread_is_refused(watched: Watched) -> None:
    watch = ResourceWatch(watched)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(next, watch)
        wait_until(lambda: watched._waiting, "it waits")
        with pytest.raises(RuntimeError, match="another thread or task"):
            next(watch)
        watched.note_uncertain()
        assert not first.result(20).is_certain


def test_a_loss_before_the_first_answer_counts(keeping: Keeping) -> None:
    losses = keeping.keeper.losses
    keeping.lose_connection()
    watch = keeping.keep(Kept("first"), losses)
    wait_until(lambda: watch.uncertain, "it may have missed something")


def test_a_watch_that_fails_stops_no_other(keeping: Keeping, caplog: pytest.LogCaptureFixture) -> None:
    failing = keeping.keep(Kept("failing", lambda: 1 // (failing.uncertain - 1)))
    other = keeping.keep(Kept("other"))
    with caplog.at_level(logging.CRITICAL, "tarsy_tasks.agent"):
        keeping.lose_connection()
        wait_until(lambda: other.uncertain, "the other one is renewed")
    assert failing.uncertain == 2


def test_a_watch_that_begins_again_stops_no_other(keeping: Keeping) -> None:
    lost = keeping.keep(Kept("lost"), is_recorded=False)
    other = keeping.keep(Kept("other"))
    for number in (1, 2):
        keeping.lose_connection()
        wait_until(lambda number=number: other.uncertain == number, "the other one is renewed")
    assert lost.asked == 1


def test_only_ones_own_watches_count(client: Any) -> None:
    """Ids are whatever an agent has chosen."""
    others = {f"board::{number}:sre:": 9e9 for number in range(watches.MOST_OF_ONE)}
    client.zadd(keys.WATCHES, others)
    exchange = RedisExchange(client.connection_pool)
    assert [add(exchange, "sre", str(n)) for n in range(watches.MOST_OF_ONE + 1)] == [1] * watches.MOST_OF_ONE + [0]


def test_agents_of_one_user_leave_room_for_the_others(client: Any) -> None:
    """Whatever ids they choose."""
    client.zadd(keys.WATCHES, {f"board::{number:019}": 9e9 for number in range(watches.MOST_SHARED - 1)})
    exchange = RedisExchange(client.connection_pool)
    assert [add(exchange, "", name) for name in ("a", "b")] == [1, 0]
    assert add(exchange, "sre", "a") == 1


def add(exchange: RedisExchange, agent: str, name: str) -> int:
    slots: dict[str, Any] = {"text": "{}", "most_shared": watches.MOST_SHARED, "instance": "w", "held_s": 9.0}
    owner = f":{agent}:" if agent else f"::{name}"
    record, member = keys.watch_key(agent, name), watches.member_of("board", agent, name)
    return watches.add.run(exchange, record=record, member=member, owner=owner, **slots)

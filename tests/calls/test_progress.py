"""What happens to a call while it runs reaches the agent that listens, in order, whatever carries it."""

import asyncio
import json
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from tarsy_tasks import (
    AsyncToolExecutor,
    CallEvent,
    CallLog,
    CallProgress,
    CallRestarted,
    DeadlineMoved,
    ErrorCode,
    Outcome,
    ToolExecutor,
)
from tarsy_tasks.broker import keys
from tarsy_tasks.telemetry.metrics import read_metrics
from tests.conftest import StartWorker
from tests.gates import make_gate, open_gate
from tests.plants import know
from tests.processes import Worker, free_port, listening, wait_until
from tests.servers import either_era, player_stdio
from tests.warm_start import warm_command

OVER_HTTP = {
    "http-new": (),
    "http-old": ("--handshake",),
    "sse-old": ("--handshake", "--sse"),
}
OVER_STDIO = {"stdio-new": (), "stdio-old": ("--handshake",)}
WITH_LINES = ("http-new", "http-old")
SECRET = "opensesame-opensesame"
SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'
know("in progress", SECRET)


def player(**settings: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", "-E", player_stdio.__file__], **settings}


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    directory = tmp_path_factory.mktemp("servers")
    servers = {name: warm_command(either_era.__file__, *options) for name, options in OVER_STDIO.items()}
    with ExitStack() as stack:
        for name, options in OVER_HTTP.items():
            port = free_port()
            command = [sys.executable, either_era.__file__, *options, "--http", str(port)]
            stack.enter_context(listening(command, port, directory))
            kind, path = ("sse", "sse") if "--sse" in options else ("http", "mcp")
            servers[name] = {"type": kind, "url": f"http://127.0.0.1:{port}/{path}"}
        servers["player"] = player(env={"PASSWORD": SECRET})
        servers["alone"] = player(session="per_call")
        servers["patient"] = player(
            timeouts={"call_s": 4, "progress_extends": True, "progress_limit_s": 10}, masking={"groups": []}
        )
        yield start_worker(servers, arguments=["-c", "8"])


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=30)


@pytest.fixture
def client(redis_url: str, worker: Worker) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


def of(kind: type[Any], events: Sequence[CallEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def play(tools: ToolExecutor, *steps: dict[str, Any], server: str = "player", tool: str = "play") -> Any:
    return tools.submit(f"{server}.{tool}", {"steps": [*steps]}, events=True)


@pytest.mark.parametrize("name", [*OVER_STDIO, *OVER_HTTP])
def test_progress_comes_over_every_transport(tools: ToolExecutor, name: str) -> None:
    pending = tools.submit(f"{name}.march", {"steps": 5}, events=True)
    events = [*pending.events()]
    assert pending.done(), "the answer is there after the last event"
    last = of(CallProgress, events)[-1]
    assert (last.progress, last.total, last.message) == (5, 5, "step 5")
    lines = of(CallLog, events)
    assert [line.text for line in lines] == ([f"line {n}" for n in range(1, 6)] if name in WITH_LINES else [])
    assert {(line.level, line.logger) for line in lines} <= {("info", "march")}
    assert pending.result().content == "true", "the server was asked for progress"
    assert tools.execute(f"{name}.march", {"steps": 2}).content == "false", "and is not when nobody listens"


def test_asyncio_agents_get_the_same(worker: Worker) -> None:
    seen: list[float] = []

    async def note(progress: CallProgress) -> None:
        await asyncio.sleep(0)
        seen.append(progress.progress)

    async def run() -> list[CallEvent]:
        async with AsyncToolExecutor(timeout_s=30) as tools:
            steps = [{"progress": {"total": 3}, "times": 3}]
            pending = await tools.submit("player.play", {"steps": steps}, on_progress=note)
            events = [event async for event in pending.events()]
            assert (await pending.result()).outcome is Outcome.OK
            assert seen[-1] == 3, "it has been called when the answer is there"
            return events

    assert of(CallProgress, asyncio.run(run()))[-1].progress == 3


def test_a_function_is_called_with_progress_until_the_answer(tools: ToolExecutor, tmp_path: Path) -> None:
    seen: list[CallProgress] = []
    go_on = make_gate(tmp_path / "go-on")
    steps = [{"progress": {"progress": 1}}, {"wait_for": str(go_on)}, {"progress": {"progress": 2}}]
    pending = tools.submit("player.play", {"steps": steps}, on_progress=seen.append)
    wait_until(lambda: seen, "it is called while the call runs")
    assert not pending.done()
    open_gate(go_on)
    assert pending.result().outcome is Outcome.OK
    assert [each.progress for each in seen] == [1, 2]


def test_a_function_that_fails_costs_the_call_nothing(tools: ToolExecutor) -> None:
    def fail(_: CallProgress) -> None:
        raise RuntimeError("no screen")

    pending = tools.submit("player.play", {"steps": [{"progress": {}, "times": 3}]}, on_progress=fail)
    assert pending.result().outcome is Outcome.OK


def test_events_have_to_be_asked_for(tools: ToolExecutor) -> None:
    pending = tools.submit("player.play", {})
    with pytest.raises(ValueError, match="events=True"):
        pending.events()
    assert pending.result().content == "{}"


def test_bad_progress_is_counted_and_costs_nothing(tools: ToolExecutor, client: Any) -> None:
    def counted() -> int:
        return sum(each.ignored_events for each in read_metrics(client, ["player"])["player"])

    before = counted()
    bad = [
        {"progress": {"progress": "half"}},
        {"progress": {"progress": None}},
        {"progress": {"progress": True}},
        {"progress": {"progress": "infinity"}},
        {"progress": {"progress": "huge"}},
        {"progress": {"progress": 3}},  # backwards
        {"progress": {"progress": 6, "progressToken": "of another call"}},
        {"progress": {"progress": 6, "progressToken": True}},
        {"progress": {"progress": 6, "progressToken": {"a": 1}}},
        {"progress": {"progress": 7, "message": "x" * 20_000}},
        {"progress": {"progress": 8, "message": "half a character"}},
        {"log": {"level": "info", "data": "nobody knows whose"}},
    ]
    steps = [{"progress": {"progress": 5, "total": "many", "message": 7}}, *bad]
    pending = play(tools, *steps)
    events = [*pending.events()]
    assert [(each.progress, each.total, each.message) for each in of(CallProgress, events)] == [(5, None, "")]
    assert len(events) == 1
    assert pending.result().outcome is Outcome.OK
    wait_until(lambda: counted() == before + len(bad), "they are counted")


def test_what_servers_say_is_masked_and_cut(tools: ToolExecutor, client: Any) -> None:
    said = f"password: {SECRET} "
    with client.pubsub() as pubsub:
        pubsub.psubscribe(f"{keys.EVENTS}*")
        steps = [
            {"progress": {"message": said + "x" * 5000}},
            {"log": {"level": "info", "logger": said, "data": {"password": SECRET}}},
        ]
        pending = play(tools, *steps, server="alone")
        events = [*pending.events()]
        heard: list[bytes] = []
        while message := pubsub.get_message(timeout=0.1):
            heard.append(str(message["data"]).encode())
    [line], progress = of(CallLog, events), of(CallProgress, events)[-1]
    assert SECRET not in f"{events}"
    assert progress.message.startswith("password: ")
    assert len(progress.message) <= 500
    assert "password" in line.text
    assert len(heard) > 1
    assert not any(SECRET.encode() in each for each in heard)


def test_of_many_the_last_one_reaches_the_agent(tools: ToolExecutor, client: Any) -> None:
    with client.pubsub() as pubsub:
        pubsub.psubscribe(f"{keys.EVENTS}*")
        pending = play(tools, {"progress": {"total": 1000}, "times": 1000, "per_s": 1000})
        events = [*pending.events()]
        heard = 0
        while message := pubsub.get_message(timeout=0.1):
            heard += message["type"] == "pmessage"
    seen = [each.progress for each in of(CallProgress, events)]
    assert seen == sorted(seen)
    assert seen[-1] == 1000
    duration_s = pending.result().duration_s
    assert 1 < heard <= 10 * duration_s + 2, "at most ten a second, and the last one"


def test_lines_that_are_too_many_are_counted(tools: ToolExecutor) -> None:
    pending = play(tools, {"log": {"level": "debug", "data": "again"}, "times": 300}, server="alone")
    assert pending.result().outcome is Outcome.OK
    lines = of(CallLog, [*pending.events()])
    assert len(lines) < 300
    assert sum(1 + line.lost for line in lines) == 300


def test_one_that_does_not_read_keeps_the_newest(tools: ToolExecutor) -> None:
    others = [play(tools, {"progress": {}, "times": 300, "per_s": 1000}) for _ in range(3)]
    assert all(each.result().outcome is Outcome.OK for each in others)
    for each in others:
        assert [event.progress for event in each.events()] == [300]
        assert [*each.events()] == [], "each event is given once"


def test_nothing_is_left_of_a_call_that_has_ended(tools: ToolExecutor, client: Any) -> None:
    assert play(tools, {"progress": {}, "times": 3}).result().outcome is Outcome.OK
    wait_until(lambda: not [*client.scan_iter(f"{keys.CALL_STATES}*")], "its state is deleted")


def test_a_new_attempt_is_an_event(tools: ToolExecutor, tmp_path: Path) -> None:
    gate = make_gate(tmp_path / "gate")
    steps = [{"progress": {"progress": 5}}, {"wait_for": str(gate)}, {"die_once": str(tmp_path / "died")}]
    pending = play(tools, *steps, {"progress": {"progress": 1}}, tool="replay")
    stream = pending.events()
    first = next(stream)
    open_gate(gate)
    events = [first, *stream]
    [restarted] = of(CallRestarted, events)
    assert (restarted.attempt, restarted.is_other_worker) == (2, False)
    place = events.index(restarted)
    assert [each.progress for each in of(CallProgress, events[:place])] == [5]
    assert pending.result().attempts == 2
    after = [each.progress for each in of(CallProgress, events[place:])]
    assert after == sorted(after)
    assert after[-1] == 5, "the second attempt begins again, and comes as far"


def test_a_cancelled_call_ends_its_events(tools: ToolExecutor, tmp_path: Path) -> None:
    pending = play(tools, {"progress": {}}, {"wait_for": str(make_gate(tmp_path / "never"))})
    events = pending.events()
    assert isinstance(next(events), CallProgress)
    pending.cancel()
    assert [*events] == []
    assert pending.result().outcome is Outcome.CANCELLED


@pytest.mark.parametrize("options", [{}, {"expires": 600}], ids=["plain door", "stock door"])
def test_any_producer_may_ask_for_events(client: Any, redis_url: str, options: dict[str, Any]) -> None:
    task_id = str(uuid.uuid4())
    with client.pubsub() as pubsub, Celery("foreign", broker=redis_url, backend=redis_url) as app:
        pubsub.subscribe(keys.events_channel(task_id, ""))
        steps = [{"progress": {"progress": 1, "total": 2}}, {"pause_s": 0.3}, {"progress": {"progress": 2, "total": 2}}]
        arguments = ["player", "play", {"steps": steps}, {"events": True}]
        sent = app.send_task("tarsy.call_tool", arguments, task_id=task_id, queue="mcp.player", **options)
        assert sent.get(timeout=20)["outcome"] == "ok"
        batches: list[Any] = []
        while message := pubsub.get_message(timeout=0.1):
            if message["type"] == "message":
                batches.append(json.loads(message["data"]))
    assert [batch["progress"]["progress"] for batch in batches][::2][:1] == [1]
    assert batches[-1]["progress"]["progress"] == 2
    assert [batch["number"] for batch in batches] == [*range(1, len(batches) + 1)]


def test_progress_gives_a_call_more_time(worker: Worker) -> None:
    with ToolExecutor(timeout_s=4) as tools:
        pending = play(tools, {"progress": {"total": 25}, "times": 25, "per_s": 4}, server="patient")
        result = pending.result()
        assert (result.outcome, result.duration_s > 5) == (Outcome.OK, True)
        moved = of(DeadlineMoved, [*pending.events()])
        assert moved
        assert moved[-1].timeout_s > 4


def test_progress_that_never_ends_has_a_limit(worker: Worker) -> None:
    with ToolExecutor(timeout_s=4) as tools:
        pending = play(tools, {"progress": {}, "times": 1000, "per_s": 20}, server="patient")
        result = pending.result()
        assert (result.outcome, result.error_code) == (Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)
        assert 9.5 < result.duration_s < 14
        assert re.search(r"no answer within (9\.[5-9]\d*|10) s", result.content)


@pytest.mark.parametrize("progress", [{"progress": 1}, {"progress": "?"}], ids=["the same again", "no number"])
def test_only_progress_that_grows_extends(worker: Worker, progress: dict[str, Any]) -> None:
    with ToolExecutor(timeout_s=4) as tools:  # if it was extended, it would end with its last step, within the limit
        pending = play(tools, {"progress": progress, "times": 140, "per_s": 20}, server="patient")
        assert pending.result().error_code in (ErrorCode.CALL_TIMEOUT, ErrorCode.NO_ANSWER)


def test_where_it_is_not_configured_nothing_extends(worker: Worker) -> None:
    with ToolExecutor(timeout_s=1) as tools:
        pending = play(tools, {"progress": {}, "times": 40, "per_s": 20})
        assert pending.result().outcome is Outcome.TIMEOUT
        assert not of(DeadlineMoved, [*pending.events()])

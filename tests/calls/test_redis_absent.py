"""Redis that is not there: an agent learns so within its deadline, a worker waits, says so, and serves once it is."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError

from tarsy_tasks import AsyncToolExecutor, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.celery_app import TarsyApp, agent_app, build_app
from tarsy_tasks.errors import BrokerUnavailable
from tests.processes import DEMO_SERVER, Worker, environment_of, free_port, wait_until
from tests.redis_users import url_of
from tests.valkey import Valkey

CALL = ToolCall(id="c", name="desk.echo", arguments={"text": "hello"})
DEADLINE_S = 0.8
SLACK_S = 10.0

SYNC: dict[str, Callable[[ToolExecutor], object]] = {
    "execute": lambda tools: tools.execute(CALL),
    "submit": lambda tools: tools.submit(CALL),
    "execute_many": lambda tools: tools.execute_many([CALL, CALL]),
    "list_tools": lambda tools: tools.list_tools(),
}
ASYNC: dict[str, Callable[[AsyncToolExecutor], Awaitable[object]]] = {
    "execute": lambda tools: tools.execute(CALL),
    "submit": lambda tools: tools.submit(CALL),
    "execute_many": lambda tools: tools.execute_many([CALL, CALL]),
    "list_tools": lambda tools: tools.list_tools(),
}


@contextmanager
def _refused_in_time() -> Iterator[None]:
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="Redis"):
        yield
    assert time.monotonic() - started < DEADLINE_S + SLACK_S


def _app(url: str) -> TarsyApp:
    return build_app({"broker_url": url, "result_backend": url})


@pytest.fixture(scope="module")
def absent() -> TarsyApp:
    """An application whose Redis nobody runs."""
    return _app(f"redis://127.0.0.1:{free_port()}/0")


@pytest.fixture(scope="module", autouse=True)
def _configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("agent") / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"desk": DEMO_SERVER}}))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TARSY_MCP_CONFIG", str(path))
        yield


@pytest.mark.parametrize("verb", SYNC)
def test_agents_learn_in_time_that_redis_is_away(absent: TarsyApp, verb: str) -> None:
    tools = ToolExecutor(["desk"], timeout_s=DEADLINE_S, app=absent)
    with _refused_in_time():
        SYNC[verb](tools)


@pytest.mark.parametrize("verb", ASYNC)
def test_asyncio_agents_learn_in_time_that_redis_is_away(absent: TarsyApp, verb: str) -> None:
    async def ask() -> None:
        async with AsyncToolExecutor(["desk"], timeout_s=DEADLINE_S, app=absent) as tools:
            with _refused_in_time():
                await ASYNC[verb](tools)

    asyncio.run(ask())


def test_a_cancel_without_redis_does_not_say_that_nothing_ran() -> None:
    with Valkey() as valkey:
        pending = ToolExecutor(["desk"], timeout_s=30, app=_app(valkey.connection_url)).submit(CALL)
    with pytest.raises(BrokerUnavailable, match=r"The call was not cancelled: it may be running") as caught:
        pending.cancel()
    assert caught.value.may_have_run
    assert "did not run" not in str(caught.value)


def test_a_list_without_redis_does_not_speak_of_a_call(caplog: pytest.LogCaptureFixture) -> None:
    nobody = _app(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(BrokerUnavailable, match=r"No tools were listed\.") as caught:
        ToolExecutor(["desk"], timeout_s=0.8, app=nobody).list_tools()
    assert "The call" not in str(caught.value)
    # A first program whose Redis is not there says so at once, not after the 60 s that it waits by default.
    assert "Redis cannot be reached. Calls wait for it until their deadlines; check TARSY_REDIS_URL" in caplog.text


def test_each_try_of_an_agent_to_send_is_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARSY_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    pool: Any = agent_app().producer_pool
    started = time.monotonic()
    with pytest.raises(OperationalError), pool.acquire() as producer:
        assert producer.channel
    assert time.monotonic() - started < SLACK_S, "the agent tries again until its deadline; kombu would beyond that"


def test_an_asyncio_agent_without_redis_keeps_its_loop(absent: TarsyApp) -> None:
    async def ask() -> int:
        ticks = 0
        async with AsyncToolExecutor(["desk"], timeout_s=5, app=absent) as tools:
            asking = asyncio.ensure_future(tools.execute(CALL))
            while not asking.done():
                await asyncio.wait({asking}, timeout=0.05)
                ticks += 1
            assert isinstance(asking.exception(), BrokerUnavailable)
        return ticks

    assert asyncio.run(ask()) > 5 / 0.05 / 2


def test_reading_the_last_list_asks_nobody(absent: TarsyApp) -> None:
    tools = ToolExecutor(["desk"], timeout_s=DEADLINE_S, app=absent)
    for read in (tools.failed_servers, tools.prompt_section):
        with pytest.raises(RuntimeError, match=r"call list_tools\(\) first"):
            read()


def test_a_name_that_cannot_be_right_is_rejected_without_redis(absent: TarsyApp) -> None:
    tools = ToolExecutor(["desk"], timeout_s=DEADLINE_S, app=absent)
    assert tools.execute(ToolCall(id="c", name="chair.sit")).outcome is Outcome.REJECTED


def test_agent_and_worker_go_on_when_redis_is_back(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        with Valkey(port=port):
            worker = _started(stack, tmp_path, port)
            worker.wait_until_ready()
            stack.enter_context(environment_of(worker))
            tools, hasty = ToolExecutor(timeout_s=20), ToolExecutor(timeout_s=DEADLINE_S)
            assert tools.execute(CALL).content == "hello"
        with _refused_in_time():
            hasty.execute(CALL)
        with Valkey(port=port):
            assert tools.execute(CALL).content == "hello"
            worker.stop()


def test_answers_wait_for_a_redis_that_cannot_save(tmp_path: Path) -> None:
    with ExitStack() as stack:
        valkey = stack.enter_context(Valkey(save="900 1"))
        assert valkey.port is not None
        worker = _started(stack, tmp_path, valkey.port)
        worker.wait_until_ready()
        stack.enter_context(environment_of(worker))
        client = stack.enter_context(redis.Redis.from_url(valkey.connection_url))
        tools = ToolExecutor(timeout_s=60)
        pending = tools.submit("desk.wait", {"seconds": 10, "steps": 1})
        wait_until(lambda: client.hget(keys.call_marker(pending.id), "mark") == b"begun", "it runs")
        in_the_way = valkey.data_dir / "dump.rdb"
        in_the_way.mkdir()
        _save(client, "err")
        worker.wait_for_log("Redis cannot store a result, trying again: MISCONF")
        in_the_way.rmdir()
        _save(client, "ok")
        assert pending.result().outcome is Outcome.OK
        assert tools.execute(CALL).content == "hello"
        worker.stop()


def _save(client: redis.Redis, expected: str) -> None:
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == expected, f"saving is {expected}")


def test_a_worker_waits_for_redis_and_serves_once_it_is_there(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        worker = _started(stack, tmp_path, port)
        _wait_until_it_says_that_redis_is_absent(worker, port)
        stack.enter_context(Valkey(port=port))
        worker.wait_until_ready()
        with environment_of(worker):
            assert ToolExecutor(timeout_s=20).execute(CALL).content == "hello"
        worker.stop()


def test_a_worker_misses_little_of_a_redis_that_was_away_shortly(tmp_path: Path) -> None:
    with ExitStack() as stack:
        worker = _started(stack, tmp_path, free_port())

        def waits() -> list[str]:
            return re.findall(r"Trying again (now|in [0-9.]+)", worker.log)

        wait_until(lambda: len(waits()) > 1, "it has tried again", 60)
        assert waits()[:2] == ["now", "now"], "less than a second"  # Celery's are 2 and 4 s
        worker.stop()


def test_a_worker_that_waits_for_redis_can_be_stopped(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        worker = _started(stack, tmp_path, port)
        _wait_until_it_says_that_redis_is_absent(worker, port)
        worker.stop(timeout_s=15)


def _started(stack: ExitStack, directory: Path, port: int) -> Worker:
    worker = Worker(directory, {"desk": DEMO_SERVER}, url_of(port))
    stack.enter_context(worker)
    return worker


def _wait_until_it_says_that_redis_is_absent(worker: Worker, port: int) -> None:
    for words in ("Cannot connect to", f"127.0.0.1:{port}", "Trying again in"):
        worker.wait_for_log(words)
    assert worker.process.poll() is None

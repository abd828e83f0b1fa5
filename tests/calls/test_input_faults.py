"""Calls that wait for input, and lost workers, a Redis that restarts, a server that restarts, agents with users."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import chain

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, ToolResult, tool_signature
from tarsy_tasks.broker import keys, parked_views
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.errors import OutcomeError
from tests.calls.waiting_calls import TIMEOUT_S, Start, curious_server, kill, restartable
from tests.faults.ledger import Ledger
from tests.processes import Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.valkey import Valkey


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def start(start_mortal: Start, ledger: Ledger) -> Start:
    return lambda *options, **more: start_mortal({"shop": curious_server(ledger, *options, **more)})


def build_tools(**more: Any) -> ToolExecutor:
    return ToolExecutor(["shop"], timeout_s=TIMEOUT_S, park=True, **more)


def test_a_worker_that_is_lost_loses_no_question(start: Start, ledger: Ledger) -> None:
    """The process of a stdio server ends with its worker: what it gave for itself means nothing to the next one."""
    worker = start()
    with build_tools() as tools:
        order, page = tools.submit("shop.order", {"key": "kept"}), tools.submit("shop.visit")
        assert order.questions()
        assert page.questions()
        kill(worker)
        start()
        tools.resume(page, "accept")
        tools.resume(order, {order.questions()[0].name: {"size": 1}})
        assert page.result().content == "accept"
        result = order.result()
    assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, ErrorCode.INPUT_STATE_REFUSED)
    assert "was restarted since" in result.content
    assert "Call it again" in result.content
    assert ledger.runs("order")["kept"] == 0


def test_a_chain_goes_on_after_its_worker_was_lost(start: Start) -> None:
    worker = start()
    last = chain(*(tool_signature("shop.visit", {}, park=True) for _ in range(2))).delay()
    with build_tools() as tools:
        first = tools.attach(last.parent.id, "shop.visit")
        assert first.questions()
        kill(worker)
        start()
        tools.resume(first, "decline")
        second = tools.attach(last.id, "shop.visit")
        assert second.questions()
        tools.resume(second, "accept")
    assert ToolResult.model_validate(last.get(timeout=TIMEOUT_S)).content == "accept"
    assert ToolResult.model_validate(last.parent.get(timeout=TIMEOUT_S)).content == "decline"


def test_a_session_that_waits_is_lost_with_its_worker(start: Start, table: Any, ledger: Ledger) -> None:
    worker = start("--handshake")
    with build_tools() as tools:
        pending = tools.submit("shop.order", {"key": "lost"})
        [question] = pending.questions()
        kill(worker)
        start("--handshake")
        result = pending.result()
        assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.WORKER_LOST)
        with pytest.raises(OutcomeError) as refused:
            tools.resume(pending, {question.name: {"size": 1}})
        assert refused.value.result.error_code is ErrorCode.ANSWER_REFUSED
    assert ledger.runs("order")["lost"] == 0


def test_a_question_of_a_harmless_tool_is_asked_again(start: Start, ledger: Ledger) -> None:
    worker = start("--handshake")
    with build_tools() as tools:
        pending = tools.submit("shop.look", {"key": "again"})
        first = pending.questions()
        before = pending.parked
        assert first
        assert before is not None
        kill(worker)
        start("--handshake")
        wait_until(lambda: pending.parked and pending.parked.digest != before.digest, "it asks again", TIMEOUT_S)
        [question] = pending.questions()
        tools.resume(pending, {question.name: {"size": 8}})
        assert pending.result().content == "again: 8"
    assert ledger.runs("look")["again"] == 1


def test_questions_outlive_a_restart_of_everything(tmp_path: Path, ledger: Ledger) -> None:
    with restartable(tmp_path, {"shop": curious_server(ledger)}) as everything, build_tools() as tools:
        pending = [tools.submit("shop.visit") for _ in range(20)]
        assert all(each.questions() for each in pending)
        everything.restart()
        for each in pending:
            tools.resume(each, "accept")
        assert {each.result().content for each in pending} == {"accept"}


def test_a_bound_agent_answers_its_own_calls_only(tmp_path: Path, ledger: Ledger) -> None:
    agents = tuple(AgentUser(name, ("shop",)) for name in ("sre", "dev"))
    with Valkey(agents=agents) as valkey:
        worker = Worker(tmp_path / "worker", {"shop": curious_server(ledger)}, url_of(valkey.port))
        with worker, environment_of(worker):
            worker.wait_until_ready()
            urls = [url_of(valkey.port, name) for name in ("sre", "dev")]
            own, other = (build_app({"broker_url": url, "result_backend": url}) for url in urls)
            with closing(own), closing(other), build_tools(app=own) as tools, build_tools(app=other) as thief:
                pending = tools.submit("shop.order", {"key": "bound"})
                [question] = pending.questions()
                stolen = thief.attach(pending.id, "shop.order")
                assert stolen.questions(), "who has the id of a call can read its state"
                with pytest.raises(OutcomeError, match="belongs to another agent"):
                    thief.resume(stolen, {question.name: {"size": 1}})
                with redis.Redis.from_url(urls[1]) as client:
                    for key in (keys.input_key(pending.id), keys.parked_key(pending.id)):
                        with pytest.raises(redis.exceptions.NoPermissionError):
                            client.hgetall(key)
                with redis.Redis.from_url(url_of(valkey.port)) as client:
                    client.acl_log_reset()
                    assert parked_views.load(client, pending.id) is not None
                tools.resume(pending, {question.name: {"size": 2}})
                assert pending.result().content == "bound: 2 red"

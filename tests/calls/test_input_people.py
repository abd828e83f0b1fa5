"""People answer what servers ask: on the command line, or while an agent does; and what of it nobody sees."""

import json
import threading
from typing import Any

import pytest
import redis
from celery import Celery

from tarsy_tasks import Outcome, ParkedCall, ToolExecutor
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys
from tarsy_tasks.errors import OutcomeError
from tarsy_tasks.questions import Answers
from tests.calls.audit_entries import only_entry
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, curious_server
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger
from tests.processes import Worker, wait_until
from tests.redis_users import as_user
from tests.servers import curious


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "ledger")
    servers = {"shop": curious_server(ledger), "old": curious_server(ledger, "--handshake")}
    return start_worker(servers, settings=SHORT_LEASE, arguments=["-c", "2"])


def run_cli(worker: Worker, *words: str, code: int = 0) -> str:
    done = run_command(*words, environment=worker.environment)
    assert done.returncode == code, done
    return done.stdout + done.stderr


def test_people_answer_on_the_command_line(worker: Worker, tools: ToolExecutor, table: Any) -> None:
    order, survey = tools.submit("shop.order", {"key": "by hand"}), tools.submit("shop.survey", {"key": "by hand"})
    login = tools.submit("shop.login")
    for each in (order, survey, login):
        assert each.questions()
    listed = json.loads(run_cli(worker, "inbox", "--json"))["calls"]
    assert {each["id"] for each in listed} == {order.id, survey.id, login.id}
    assert {each["reason"] for each in listed} == {"input_required"}
    assert "answers" in run_cli(worker, "inbox")
    assert "Which size for by hand?" in run_cli(worker, "answer", order.id)
    assert "looks like a secret" in run_cli(worker, "answer", login.id)
    assert json.loads(run_cli(worker, "answer", order.id, "--json"))["questions"][0]["mode"] == "form"
    assert "expected an integer" in run_cli(worker, "answer", order.id, "size=huge", code=2)
    assert "field of which question" in run_cli(worker, "answer", survey.id, "age=3", code=2)
    assert "waits for answers" in run_cli(worker, "approve", order.id, "--yes", code=1)
    assert "goes on" in run_cli(worker, "answer", order.id, "size=5", "--as", "ann")
    assert order.result().content == "by hand: 5 red"
    assert only_entry(table, order.id).input == "1 round, answered by ann"
    assert "somebody else was earlier" in run_cli(worker, "answer", order.id, "size=5", code=1)
    digest = json.loads(run_cli(worker, "answer", survey.id, "--json"))["digest"]
    assert digest in run_cli(worker, "answer", survey.id)
    run_cli(worker, "answer", survey.id, "name.name=Ann", "age.age=3", "--digest", digest)
    wait_until(lambda: asks_next(survey), "it hears of the next question", TIMEOUT_S)
    assert "something else now" in run_cli(worker, "answer", survey.id, "--decline", "--digest", digest, code=1)
    run_cli(worker, "answer", survey.id, "--decline")
    run_cli(worker, "answer", login.id, "--cancel")
    assert {each.result().outcome for each in (survey, login)} == {Outcome.OK}
    assert "not found" in run_cli(worker, "answer", "nothing", "--decline", code=1)


def test_nobody_but_workers_sees_the_state_of_the_server(tools: ToolExecutor, table: Any, worker: Worker) -> None:
    pending = tools.submit("shop.survey", {"key": "hidden"})
    assert pending.questions()
    assert table.hget(keys.input_key(pending.id), "state"), "it travels with the call"
    seen = [str(pending.parked), run_cli(worker, "inbox", "--json"), run_cli(worker, "answer", pending.id, "--json")]
    seen += [str(table.hgetall(keys.parked_key(pending.id))), worker.log]
    state = table.hget(keys.input_key(pending.id), "state").decode()
    assert not any(state in each or curious.SECRET_STATE in each for each in seen)
    for user in ("agent", "flower"):
        with (
            redis.Redis.from_url(as_user(worker.environment["TARSY_REDIS_URL"], user)) as client,
            pytest.raises(redis.exceptions.NoPermissionError),
        ):
            client.hgetall(keys.input_key(pending.id))
    table.acl_log_reset()
    pending.cancel()


def test_a_secret_in_a_question_is_masked(tools: ToolExecutor, table: Any, worker: Worker) -> None:
    secret = "ghp_" + "4fJk29sLqPzXw8RtYb71" * 2
    pending = tools.submit("shop.order", {"key": f"lamp, token={secret}"})
    [question] = pending.questions()
    seen = [question.message, run_cli(worker, "inbox", "--json"), run_cli(worker, "answer", pending.id)]
    seen += [str(table.hgetall(keys.parked_key(pending.id))), str(table.get(keys.result_key(pending.id)))]
    assert ["Which size for lamp" in each for each in seen] == [True] * 5
    assert not [each for each in [*seen, worker.log] if secret[:20] in each]
    assert tools.resume(pending, {question.name: {"size": 3}}).result().outcome is Outcome.OK


def test_people_answer_while_a_session_waits(worker: Worker, tools: ToolExecutor) -> None:
    pending = tools.submit("old.order", {"key": "held"})
    assert pending.questions()
    assert "Which size for held?" in run_cli(worker, "inbox")
    run_cli(worker, "answer", pending.id, "size=3", "color=blue")
    assert pending.result().content == "held: 3 blue"


def answer_first_round(pending: PendingCall) -> None:
    """As another process of the same agent; `pending` hears of the next question."""
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as other:
        attached = other.attach(pending.id, "shop.survey")
        assert len(attached.questions()) == 2
        other.resume(attached, {"name": {"name": "Ann"}, "age": {"age": 4}})
    wait_until(lambda: asks_next(pending), "it hears of the next question", TIMEOUT_S)


def asks_next(survey: PendingCall) -> bool:
    return survey.parked is not None and [each.name for each in survey.parked.questions] == ["sure"]


def test_answers_are_for_the_questions_that_were_returned(tools: ToolExecutor) -> None:
    pending = tools.submit("shop.survey", {"key": "returned"})
    assert len(pending.questions()) == 2
    answer_first_round(pending)
    with pytest.raises(OutcomeError, match="something else since"):
        tools.resume(pending, "decline")
    assert [each.name for each in pending.questions()] == ["sure"]
    assert "'sure': True" in tools.resume(pending, {"sure": {"sure": True}}).result().content


def test_a_slow_function_answers_no_later_question(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def answer(parked: ParkedCall) -> Answers | None:
        if len(parked.questions) == 1:
            return None
        release.wait(TIMEOUT_S)
        return "decline"

    with ToolExecutor(timeout_s=TIMEOUT_S, on_input=answer, agent_id="sre") as tools:
        pending = tools.submit("shop.survey", {"key": "slow"})
        answer_first_round(pending)
        release.set()
        wait_until(lambda: "was refused" in caplog.text, "its answer is refused", TIMEOUT_S)
        assert [each.name for each in pending.questions()] == ["sure"]
        assert "'sure': True" in tools.resume(pending, {"sure": {"sure": True}}).result().content


@pytest.mark.parametrize("server", ["shop", "old"])
def test_the_event_says_what_a_call_waits_for(tools: ToolExecutor, redis_url: str, server: str) -> None:
    seen: list[dict[str, Any]] = []
    with Celery("listener", broker=redis_url, set_as_current=False) as app, app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"worker-mcp-parked": seen.append})
        events = receiver.itercapture(limit=None, timeout=TIMEOUT_S, wakeup=False)
        next(events)  # a heartbeat: it listens
        pending = tools.submit(f"{server}.order", {"key": "event"})
        while not seen:
            next(events)
        events.close()
    assert (seen[0]["uuid"], seen[0]["reason"]) == (pending.id, "input_required")
    assert pending.questions()
    assert tools.resume(pending, "cancel").result().outcome is Outcome.OK

"""Servers of the handshake era that ask for input: their session waits, the slot of the call does not."""

import json
from typing import Any

import pytest

from tarsy_tasks import ErrorCode, Outcome, ParkedCall, ToolExecutor, tool_signature
from tarsy_tasks.broker import keys, parked_views
from tarsy_tasks.errors import OutcomeError
from tarsy_tasks.questions import Answers
from tests.calls.audit_entries import only_entry
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, curious_server
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger
from tests.processes import Worker, wait_until


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, ledger: Ledger) -> Worker:
    servers = {
        "old": curious_server(ledger, "--handshake"),
        "brief": curious_server(ledger, "--handshake", elicitation={"wait_s": 1}),
        "quick": curious_server(ledger, "--handshake", timeouts={"call_s": 4}),
        "silent": curious_server(ledger, "--handshake", elicitation={"wait_s": 0}),
        "alone": curious_server(ledger, "--handshake", session="per_call"),
    }
    return start_worker(servers, settings=SHORT_LEASE, arguments=["-c", "1"])


@pytest.mark.parametrize("server", ["old", "alone"])
def test_the_session_waits_and_the_slot_does_not(tools: ToolExecutor, table: Any, ledger: Ledger, server: str) -> None:
    """The worker has a single slot, through which the answer has to come."""
    pending = tools.submit(f"{server}.order", {"key": f"held {server}"})
    [question] = pending.questions()
    assert question.message == f"Which size for held {server}?"
    assert pending.parked is not None
    assert pending.parked.holds_session
    with ToolExecutor(timeout_s=TIMEOUT_S) as others:
        assert others.execute(f"{server}.capabilities").outcome is Outcome.OK
    [view] = parked_views.load_waiting(table, 10)[0]
    assert (view.id, view.about["holds_session"]) == (pending.id, True)
    tools.resume(pending, {question.name: {"size": 4}})
    result = pending.result()
    assert (result.outcome, result.content) == (Outcome.OK, f"held {server}: 4 red")
    assert ledger.runs("order")["held"] >= 1
    assert only_entry(table, pending.id).input == "1 round, answered by sre"
    assert parked_views.load_waiting(table, 10)[0] == []
    assert not table.exists(keys.input_key(pending.id))


def test_agents_that_cannot_answer_are_not_asked(worker: Worker, tools: ToolExecutor) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S) as mute:
        assert mute.execute("old.capabilities").content == "false"
        assert mute.execute("old.order", {"key": "mute"}).error_code is ErrorCode.INPUT_REQUIRED
    assert tools.execute("silent.capabilities").content == "false", "`wait_s` is 0"


def test_a_page_is_shown(tools: ToolExecutor) -> None:
    pending = tools.submit("old.visit_old")
    [page] = pending.questions()
    assert (page.mode, page.url) == ("url", "https://bank.example.com/sign-in")
    assert tools.resume(pending, "accept").result().content == "accept"


def test_a_function_of_the_agent_answers(worker: Worker) -> None:
    def answer(parked: ParkedCall) -> Answers:
        return {each.name: {"size": 9} for each in parked.questions}

    with ToolExecutor(timeout_s=TIMEOUT_S, on_input=answer) as tools:
        assert tools.execute("old.order", {"key": "called"}).content == "called: 9 red"


def test_reads_and_prompts_wait_for_their_answers(worker: Worker) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S, on_input=lambda parked: {parked.questions[0].name: {"year": 2026}}) as asked:
        assert asked.read_resource("old-report://sales", server="old").contents[0].text == "sales of 2026"
        assert "Welcome to 2026." in str(asked.get_prompt("old", "old_greet"))


@pytest.mark.parametrize("action", ["accept", "decline"])
@pytest.mark.parametrize("server", ["old", "alone"])
def test_a_server_that_asks_for_ever_is_stopped(worker: Worker, ledger: Ledger, server: str, action: str) -> None:
    answers: Any = {"accept": lambda parked: {parked.questions[0].name: {"year": 1}}, "decline": lambda _: "decline"}
    with ToolExecutor(timeout_s=TIMEOUT_S, on_input=answers[action]) as tools:
        result = tools.execute(f"{server}.pester_old", {"key": f"{server}-{action}"})
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.TOO_MANY_QUESTIONS)
    assert "has asked for input 10 times" in result.content
    assert ledger.runs("pester_old")[f"{server}-{action}"] in (11, 12)


def test_what_nobody_answers_in_time_is_cancelled(tools: ToolExecutor, table: Any) -> None:
    pending = tools.submit("brief.order", {"key": "late"})
    [question] = pending.questions()
    assert pending.result().content == "late: cancel"
    assert only_entry(table, pending.id).input == "1 round, expired"
    with pytest.raises(OutcomeError) as refused:
        tools.resume(pending, {question.name: {"size": 1}})
    assert refused.value.result.error_code is ErrorCode.ANSWER_REFUSED


def test_a_question_ends_before_the_time_of_its_call(tools: ToolExecutor, table: Any) -> None:
    """Its server allows a call less time than the agent does, and has to hear that nobody has answered."""
    pending = tools.submit("quick.order", {"key": "short"})
    assert pending.questions()
    assert pending.result().content == "short: cancel"
    assert only_entry(table, pending.id).input == "1 round, expired"


def test_an_answer_to_another_question_is_not_taken(tools: ToolExecutor, table: Any) -> None:
    """This worker was paused, and another one, which has sent the call again, asks meanwhile."""
    pending = tools.submit("quick.order", {"key": "paused"})
    [question] = pending.questions()
    table.hset(keys.parked_key(pending.id), "digest", "of the other question")
    answer = {"action": "accept", "content": {"size": 9}}
    table.hset(keys.input_key(pending.id), "answers", json.dumps({question.name: answer}))
    assert pending.result().content == "paused: cancel"


def test_answers_that_do_not_fit_are_refused(tools: ToolExecutor) -> None:
    pending = tools.submit("old.order", {"key": "unfit"})
    [question] = pending.questions()
    with pytest.raises(OutcomeError, match="expected an integer"):
        tools.resume(pending, {question.name: {"size": "huge"}})
    assert tools.resume(pending, "decline").result().content == "unfit: decline"


def test_an_agent_cancels_a_call_that_is_asked(tools: ToolExecutor, table: Any) -> None:
    pending = tools.submit("old.order", {"key": "cancelled"})
    assert pending.questions()
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED
    wait_until(lambda: parked_views.load_waiting(table, 10)[0] == [], "nobody is asked any more", TIMEOUT_S)


def test_a_chain_waits_for_its_answer(tools: ToolExecutor) -> None:
    sent = tool_signature("old.order", {"key": "signed"}, park=True).delay()
    attached = tools.attach(sent.id, "old.order")
    [question] = attached.questions()
    assert sent.state == "PARKED"
    tools.resume(attached, {question.name: {"size": 2}})
    assert sent.get(timeout=TIMEOUT_S)["content"] == "signed: 2 red"


def test_two_calls_are_each_asked_their_own(tools: ToolExecutor, table: Any) -> None:
    """Over stdio nothing says which call a question is about: so they take turns once the server has asked."""
    first = tools.submit("old.order", {"key": "first"})
    assert first.questions()
    second = tools.submit("old.order", {"key": "second"})
    for _ in range(10):
        assert second.questions(timeout_s=0.1) == ()
        assert not table.exists(keys.DELAYED), "it waits in its worker, and not in Redis"
    with ToolExecutor(timeout_s=TIMEOUT_S) as others:
        assert others.execute("old.capabilities").outcome is Outcome.OK, "neither of them takes the only slot"
    tools.resume(first, {first.questions()[0].name: {"size": 1}})
    assert first.result().content == "first: 1 red"
    [question] = second.questions()
    assert question.message == "Which size for second?"
    tools.resume(second, {question.name: {"size": 2}})
    assert second.result().content == "second: 2 red"

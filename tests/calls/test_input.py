"""Servers of the 2026 era that ask for input: the call waits in Redis, and goes on as the same task."""

import asyncio
import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import chain, chord

from tarsy_tasks import (
    AsyncToolExecutor,
    ErrorCode,
    Outcome,
    ParkedCall,
    ToolExecutor,
    ToolResult,
    tool_signature,
)
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys, parked_calls, parked_views
from tarsy_tasks.broker.parked_calls import Decided
from tarsy_tasks.errors import OutcomeError
from tarsy_tasks.questions import Answers
from tests.calls.audit_entries import only_entry
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, curious_server
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger
from tests.processes import Worker, wait_until
from tests.servers import curious


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, ledger: Ledger) -> Worker:
    servers = {
        "shop": curious_server(ledger),
        "hasty": curious_server(ledger, elicitation={"expires_s": 5}),
        "guarded": curious_server(ledger, approval="always"),
    }
    return start_worker(servers, settings=SHORT_LEASE, arguments=["-c", "2"])


def test_a_call_goes_on_with_its_answer(tools: ToolExecutor, table: Any, ledger: Ledger) -> None:
    pending = tools.submit("shop.order", {"key": "shoes"})
    [question] = pending.questions()
    assert question.message == "Which size for shoes?"
    assert question.mode == "form"
    assert set(question.requested_schema["properties"]) == {"size", "color"}
    assert pending.parked is not None
    assert pending.parked.reason == "input_required"
    assert not pending.done()
    assert not table.exists(keys.LEASES), "nothing of it is in a worker"
    tools.resume(pending, {question.name: {"size": 5}})
    assert pending.result().content == "shoes: 5 red"
    assert ledger.runs("order")["shoes"] == 1


def test_an_agent_can_decline(tools: ToolExecutor) -> None:
    pending = tools.submit("shop.order", {"key": "hat"})
    assert pending.questions()
    assert tools.resume(pending, "decline").result().content == "hat: decline"


def test_a_server_asks_several_times_and_several_things(tools: ToolExecutor, table: Any, ledger: Ledger) -> None:
    pending = tools.submit("shop.survey", {"key": "long"})
    assert [each.name for each in pending.questions()] == ["name", "age"]
    everything = b"".join(table.get(key) for key in table.keys("celery-task-meta-*")) + str(pending.parked).encode()
    tools.resume(pending, {"name": {"name": "Ann"}, "age": {"age": "42"}})
    [sure] = pending.questions()
    assert sure.message == "Sure? {'action': 'accept', 'name': 'Ann'} {'action': 'accept', 'age': 42}"
    tools.resume(pending, {"sure": {"sure": True}})
    assert "'sure': True" in pending.result().content
    assert ledger.runs("survey")["long"] == 1
    assert curious.SECRET_STATE.encode() not in everything


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({}, "there is no answer to"),
        ({"other": {}}, "there is no question `other`"),
        ({"KEY": {"size": "huge"}}, "`size`: expected an integer"),
        ({"KEY": {"size": 11}}, "`size`: expected an integer"),
        ({"KEY": {}}, "`size` is missing"),
        ({"KEY": {"siz": 3}}, "has no field `siz`; did you mean `size`?"),
        ({"KEY": "perhaps"}, "it has to be the values of the form, or one of accept, decline, cancel"),
        ({"KEY": [1]}, "of the type list"),
        ("perhaps", "it has to be the values of the form"),
    ],
)
def test_answers_that_do_not_fit_are_refused(tools: ToolExecutor, ledger: Ledger, answers: Any, reason: str) -> None:
    pending = tools.submit("shop.order", {"key": "unfit"})
    [question] = pending.questions()
    given = (
        answers
        if isinstance(answers, str)
        else {name.replace("KEY", question.name): each for name, each in answers.items()}
    )
    with pytest.raises(OutcomeError) as refused:
        tools.resume(pending, given)
    result = refused.value.result
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.INVALID_ARGUMENTS)
    assert reason in result.content
    assert pending.questions() == (question,), "it still waits"
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED
    assert ledger.runs("order")["unfit"] == 0


def test_a_caller_that_does_not_wait_is_rejected(worker: Worker, table: Any, ledger: Ledger) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S) as tools:
        for tool, arguments in (("order", {"key": "unparked"}), ("visit", {})):
            result = tools.execute(f"shop.{tool}", arguments)
            assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.INPUT_REQUIRED), result.content
            assert "`park=True`" in result.content
            assert not table.exists(keys.parked_key(result.task_id))
        assert tools.execute("shop.capabilities").content == "false"
    assert ledger.runs("order")["unparked"] == 0


def test_the_server_learns_who_can_answer(tools: ToolExecutor) -> None:
    assert tools.execute("shop.capabilities").content == "true"


def test_a_server_that_asks_for_ever_is_stopped(worker: Worker) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S, on_input=lambda _: {"again": {"n": 1}}) as tools:
        result = tools.execute("shop.pester")
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.TOO_MANY_QUESTIONS)
    assert "has asked for input 10 times" in result.content


def test_a_server_may_only_give_a_state(worker: Worker) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S) as tools:
        assert tools.execute("shop.steps", {"count": 3}).content == "done"
        assert tools.execute("shop.steps", {"count": 99}).error_code is ErrorCode.TOO_MANY_QUESTIONS


def test_a_page_is_shown_and_not_opened(tools: ToolExecutor) -> None:
    pending = tools.submit("shop.visit")
    [page] = pending.questions()
    assert (page.mode, page.url) == ("url", "https://bank.example.com/sign-in?for=you")
    with pytest.raises(OutcomeError, match="takes no values"):
        tools.resume(pending, {"page": {"code": "1"}})
    assert tools.resume(pending, {"page": "accept"}).result().content == "accept"


def test_a_form_that_asks_for_a_secret_is_shown_with_a_warning(tools: ToolExecutor) -> None:
    pending = tools.submit("shop.login")
    [question] = pending.questions()
    assert "looks like a secret (password)" in question.warning
    assert tools.resume(pending, "decline").result().content == "['action']"


def test_a_server_that_asks_for_a_sample_gets_none(tools: ToolExecutor) -> None:
    result = tools.execute("shop.sample")
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.SERVER_ERROR)
    assert "Sampling not supported" in result.content


def answer_all(parked: ParkedCall) -> Answers | None:
    wanted = {"size": 3, "year": 2026, "whom": "Bob"}
    return {each.name: {name: wanted[name] for name in each.requested_schema["required"]} for each in parked.questions}


def test_a_function_of_the_agent_answers(worker: Worker) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S, on_input=answer_all) as tools:
        assert tools.execute("shop.order", {"key": "called"}).content == "called: 3 red"
        assert tools.read_resource("report://sales", server="shop").contents[0].text == "sales of 2026"
        assert "Greet Bob." in str(tools.get_prompt("shop", "greet"))


async def run_async() -> list[str]:
    async def answer(parked: ParkedCall) -> Answers | None:
        await asyncio.sleep(0)
        return answer_all(parked)

    async with AsyncToolExecutor(timeout_s=TIMEOUT_S, on_input=answer) as tools:
        first = (await tools.execute("shop.order", {"key": "coroutine"})).content
    async with AsyncToolExecutor(timeout_s=TIMEOUT_S, park=True) as tools:
        pending = await tools.submit("shop.order", {"key": "awaited"})
        [question] = await pending.questions()
        await tools.resume(pending, {question.name: {"size": 1}})
        return [first, (await pending.result()).content]


def test_asyncio_agents_answer_too(worker: Worker) -> None:
    assert asyncio.run(run_async()) == ["coroutine: 3 red", "awaited: 1 red"]


def test_a_function_that_fails_cancels(worker: Worker) -> None:
    def fail(_: ParkedCall) -> Answers:
        raise LookupError("nobody is here")

    with ToolExecutor(timeout_s=TIMEOUT_S, on_input=fail) as tools:
        assert tools.execute("shop.order", {"key": "failed"}).content == "failed: cancel"
    with ToolExecutor(timeout_s=TIMEOUT_S, on_input=lambda _: {"nonsense": {}}) as tools:
        assert tools.execute("shop.order", {"key": "refused"}).content == "refused: cancel"


def test_another_executor_answers(tools: ToolExecutor) -> None:
    pending = tools.submit("shop.order", {"key": "elsewhere"})
    assert pending.questions()
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as other:
        attached = other.attach(pending.id, "shop.order")
        [question] = attached.questions()
        other.resume(attached, {question.name: {"size": 2}})
        assert attached.result().content == pending.result().content == "elsewhere: 2 red"


@pytest.mark.parametrize("thief", ["thief", "sre-2"])
def test_only_its_agent_answers_a_call(tools: ToolExecutor, thief: str) -> None:
    pending = tools.submit("shop.order", {"key": "stolen"})
    assert pending.questions()
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id=thief) as other:
        attached = other.attach(pending.id, "shop.order")
        assert attached.questions()
        with pytest.raises(OutcomeError, match="belongs to another agent") as refused:
            other.resume(attached, "decline")
    assert refused.value.result.error_code is ErrorCode.ANSWER_REFUSED
    pending.cancel()


def test_an_agent_with_a_long_name_answers_its_call(worker: Worker) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre" * 60) as tools:
        pending = tools.submit("shop.order", {"key": "long"})
        assert pending.questions()
        assert tools.resume(pending, "decline").result().content == "long: decline"


def test_of_two_that_answer_at_once_one_counts(tools: ToolExecutor, ledger: Ledger) -> None:
    pending = tools.submit("shop.order", {"key": "twice"})
    [question] = pending.questions()
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as other:
        attached = other.attach(pending.id, "shop.order")
        assert attached.questions()

        def answer(who: tuple[ToolExecutor, PendingCall, int]) -> str:
            try:
                who[0].resume(who[1], {question.name: {"size": who[2]}})
            except OutcomeError as error:
                return error.result.error_code
            return "done"

        with ThreadPoolExecutor(2) as threads:
            said = sorted(threads.map(answer, [(tools, pending, 1), (other, attached, 2)]))
    assert said == [ErrorCode.ANSWER_REFUSED, "done"]
    assert pending.result().outcome is Outcome.OK
    assert ledger.runs("order")["twice"] == 1


def test_an_answer_to_an_earlier_question_is_refused(tools: ToolExecutor) -> None:
    pending = tools.submit("shop.survey", {"key": "stale"})
    assert len(pending.questions()) == 2
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as other:
        attached = other.attach(pending.id, "shop.survey")
        assert attached.questions()
        tools.resume(pending, {"name": {"name": "Ann"}, "age": {"age": 4}})
        assert pending.questions()
        table_says = attached.parked
        assert table_says is not None
        with pytest.raises(OutcomeError):
            other.resume(attached, {"name": {"name": "Bob"}, "age": {"age": 5}})
    assert tools.resume(pending, "decline").result().outcome is Outcome.OK


def test_a_call_that_asks_nothing_is_not_resumed(tools: ToolExecutor) -> None:
    pending = tools.submit("shop.capabilities")
    assert pending.questions() == ()
    with pytest.raises(ValueError, match="waits for no input"):
        tools.resume(pending, "accept")


def sign(key: str) -> Any:
    return tool_signature("shop.order", {"key": key}, park=True)


def answer_task(tools: ToolExecutor, task_id: str, size: int) -> None:
    attached = tools.attach(task_id, "shop.order")
    [question] = attached.questions()
    tools.resume(attached, {question.name: {"size": size}})


def read(result: Any) -> str:
    return ToolResult.model_validate(result).content


def test_a_chain_waits_for_its_answers(tools: ToolExecutor, ledger: Ledger) -> None:
    last = chain(sign("first"), sign("second")).delay()
    wait_until(lambda: last.parent.state == "PARKED", "its state", TIMEOUT_S)
    assert not last.parent.ready()
    assert ledger.runs("order")["second"] == 0
    answer_task(tools, last.parent.id, 1)
    answer_task(tools, last.id, 2)
    assert read(last.get(timeout=TIMEOUT_S)) == "second: 2 red"
    assert read(last.parent.get(timeout=TIMEOUT_S)) == "first: 1 red"


def test_a_chord_waits_for_its_answers(tools: ToolExecutor) -> None:
    body = chord([sign("one"), tool_signature("shop.capabilities", {}), sign("three")], sign("body")).delay()
    one, _, three = body.parent.results
    answer_task(tools, one.id, 1)
    answer_task(tools, three.id, 3)
    answer_task(tools, body.id, 4)
    assert read(body.get(timeout=TIMEOUT_S)) == "body: 4 red"
    assert read(three.get(timeout=TIMEOUT_S)) == "three: 3 red"


def test_waiting_calls_take_no_slot(tools: ToolExecutor, table: Any) -> None:
    many = [tools.submit("shop.order", {"key": f"slot {number}"}) for number in range(20)]
    for each in many:
        assert each.questions()
    assert not table.exists(keys.LEASES)
    assert tools.execute("shop.capabilities").outcome is Outcome.OK
    for each in many:
        tools.resume(each, {each.questions()[0].name: {"size": 1}})
    assert {each.result().outcome for each in many} == {Outcome.OK}


def test_answers_for_other_arguments_are_not_sent(tools: ToolExecutor, table: Any, ledger: Ledger) -> None:
    """Agents may write entries of the in-flight table."""
    pending = tools.submit("shop.order", {"key": "seen"})
    [question] = pending.questions()
    head, line_break, text = table.hget(keys.UNACKED, pending.id).rpartition(b"\n")
    message = json.loads(text)
    arguments, *more = json.loads(base64.b64decode(message["body"]))
    arguments[2] = {"key": "unseen"}
    message["body"] = base64.b64encode(json.dumps([arguments, *more]).encode()).decode()
    table.hset(keys.UNACKED, pending.id, head + line_break + json.dumps(message).encode())
    tools.resume(pending, {question.name: {"size": 1}})
    result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.INPUT_REQUIRED)
    assert "other arguments" in result.content
    assert not {"seen", "unseen"} & ledger.runs("order").keys()


def test_a_call_that_nobody_answers_expires(tools: ToolExecutor, table: Any, ledger: Ledger) -> None:
    abandoned = tool_signature("hasty.order", {"key": "abandoned"}, park=True).delay()  # as of an agent that died
    pending = tools.submit("hasty.order", {"key": "late"})
    [question] = pending.questions()
    result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.INPUT_EXPIRED)
    wait_until(abandoned.ready, "the other one is dropped, too", TIMEOUT_S)
    for each in (pending, abandoned):
        assert only_entry(table, each.id).input == "1 round, expired"
    with pytest.raises(OutcomeError) as refused:
        tools.resume(pending, {question.name: {"size": 1}})
    assert refused.value.result.error_code is ErrorCode.ANSWER_REFUSED
    assert not {"late", "abandoned"} & ledger.runs("order").keys()


def test_the_audit_has_who_answered_and_no_values(tools: ToolExecutor, table: Any) -> None:
    pending = tools.submit("shop.order", {"key": "audited"})
    [question] = pending.questions()
    tools.resume(pending, {question.name: {"size": 7, "color": "mauve"}})
    assert pending.result().outcome is Outcome.OK
    assert only_entry(table, pending.id).input == "1 round, answered by sre"
    wait_until(lambda: any(b"input/answer" in entry[b"entry"] for _, entry in table.xrange(keys.AUDIT)), "its entry")
    about = [entry[b"entry"] for _, entry in table.xrange(keys.AUDIT) if pending.id.encode() in entry[b"entry"]]
    assert not any(b"mauve" in each for each in about)


def test_an_approved_call_is_asked_and_not_approved_again(tools: ToolExecutor, table: Any) -> None:
    pending = tools.submit("guarded.order", {"key": "both"})
    wait_until(lambda: pending.parked, "it waits for an approval", TIMEOUT_S)
    view = parked_views.load(table, pending.id)
    assert view is not None
    assert parked_calls.decide(table, view, is_approved=True, by="ann") is Decided.APPROVED
    [question] = pending.questions()
    tools.resume(pending, {question.name: {"size": 6}})
    assert pending.result().content == "both: 6 red"
    entry = only_entry(table, pending.id)
    assert (entry.approval, entry.input) == ("approved by ann", "1 round, answered by sre")

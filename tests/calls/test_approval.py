"""Calls that a person has to approve: they wait in Redis, run once when approved, and canvas waits for them."""

import asyncio
import base64
import json
import os
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord, group

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, ToolExecutor, ToolResult, tool_signature
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys, parked_calls, parked_views
from tarsy_tasks.broker.parked_calls import Decided
from tarsy_tasks.broker.parked_views import ParkedCallView
from tests.calls.audit_entries import only_entry
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, revoke
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, wait_until


def build_servers(ledger: Ledger) -> dict[str, Any]:
    return {
        "desk": witness(ledger, approval={"default": "always", "tools": {"look": "never"}}),
        "careful": witness(ledger, approval="destructive"),
        "hasty": witness(ledger, approval={"default": "always", "expires_s": 1}),
        "strict": witness(ledger, approval={"default": "always", "approvers": 2}),
        "plain": witness(ledger),
        "brief": witness(ledger, approval={"default": "never", "tools": {"add": "always"}}, isolated={"idle_s": 5}),
    }


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, ledger: Ledger) -> Worker:
    return start_worker(build_servers(ledger), settings=SHORT_LEASE, arguments=["-c", "2"])


def wait_for_parked(table: Any, task_id: str) -> ParkedCallView:
    def find() -> ParkedCallView | None:
        found, _ = parked_views.load_waiting(table, 100)
        return next((view for view in found if view.id == task_id), None)

    found = wait_until(find, f"{task_id} is parked", TIMEOUT_S)
    assert found is not None
    return found


def approve(table: Any, task_id: str, by: str = "ann", why: str = "") -> None:
    view = wait_for_parked(table, task_id)
    assert parked_calls.decide(table, view, is_approved=True, by=by, why=why) is Decided.APPROVED


def deny(table: Any, task_id: str, why: str = "") -> None:
    view = wait_for_parked(table, task_id)
    assert parked_calls.decide(table, view, is_approved=False, by="bob", why=why) is Decided.DENIED


def add(tools: ToolExecutor, key: str, server: str = "desk") -> PendingCall:
    return tools.submit(f"{server}.add", {"key": key})


def test_an_approved_call_runs(tools: ToolExecutor, table: Any, ledger: Ledger) -> None:
    pending = add(tools, "approved")
    view = wait_for_parked(table, pending.id)
    assert (view.reason, view.about["agent_id"], view.about["arguments"]) == ("approval", "sre", '{"key":"approved"}')
    assert not pending.done()
    assert ledger.runs("add")["approved"] == 0
    approve(table, pending.id, why="needed")
    result = pending.result()
    assert (result.outcome, result.content) == (Outcome.OK, "approved")
    assert ledger.runs("add")["approved"] == 1
    assert only_entry(table, pending.id).approval == "approved by ann"


def test_an_approved_call_does_not_run_without_its_session(worker: Worker, table: Any, ledger: Ledger) -> None:
    """A call that waits for people does not use its session, so the idle limit closes that: it must not run in another
    one, where the state is gone that it was approved for."""
    assert worker
    with ToolExecutor(["brief"], timeout_s=TIMEOUT_S, park=True, session="run") as run:
        assert [run.execute("brief.count").content for _ in range(2)] == ["1", "2"]
        pending = add(run, "isolated", "brief")
        wait_for_parked(table, pending.id)
        [session] = table.keys("tarsy:session:brief:*")
        wait_until(lambda: not table.hget(session, "holder"), "its session is closed")
        approve(table, pending.id)
        told = pending.result()
        assert (told.error_code, told.outcome) == (ErrorCode.SESSION_LOST, Outcome.UNKNOWN)
        assert "closed after 5 s without a call. This call was not sent" in told.content
        assert ledger.runs("add")["isolated"] == 0
        # Asked for again, it is approved again, and runs in the next session.
        again = add(run, "isolated", "brief")
        approve(table, again.id)
        assert again.result().outcome is Outcome.OK
        assert ledger.runs("add")["isolated"] == 1


def test_its_agent_learns_why_it_waits(tools: ToolExecutor, table: Any) -> None:
    pending = add(tools, "why")
    parked = wait_until(lambda: pending.parked, "the agent hears of it", TIMEOUT_S)
    assert parked is not None
    assert (parked.reason, parked.server, parked.tool) == ("approval", "desk", "add")
    assert "has not run" in parked.text
    assert parked.until - parked.since == pytest.approx(24 * 3600, abs=1)
    deny(table, pending.id)
    assert pending.result().error_code is ErrorCode.APPROVAL_DENIED


def test_an_agent_waits_longer_than_its_timeout_for_people(worker: Worker, table: Any) -> None:
    with ToolExecutor(timeout_s=2, park=True) as tools:
        pending = add(tools, "late")
        wait_until(lambda: pending.parked, "it is parked", TIMEOUT_S)
        sent_at = table.time()[0]
        wait_until(lambda: table.time()[0] > sent_at + 3, "the time that a call has is over", TIMEOUT_S)
        approve(table, pending.id)
        assert pending.result().outcome is Outcome.OK


def test_a_denied_call_does_not_run(tools: ToolExecutor, table: Any, ledger: Ledger) -> None:
    pending = add(tools, "denied")
    deny(table, pending.id, why="not on a Friday.")
    result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.APPROVAL_DENIED)
    assert "was denied by bob: not on a Friday. The tool did not run." in result.content
    assert ledger.runs("add")["denied"] == 0
    entry = only_entry(table, pending.id)
    assert (entry.approval, entry.error_code) == ("denied by bob", "APPROVAL_DENIED")


def test_a_call_that_nobody_approves_expires(worker: Worker, tools: ToolExecutor, table: Any, ledger: Ledger) -> None:
    abandoned = tool_signature("hasty.add", {"key": "abandoned"}, park=True).delay()  # as of an agent that died
    pending = add(tools, "expired", "hasty")
    result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.APPROVAL_EXPIRED)
    wait_until(lambda: abandoned.ready(), "the other one is dropped, too", TIMEOUT_S)
    for each in (pending, abandoned):
        assert only_entry(table, each.id).approval == "expired"
        assert "it has expired" in run_cli(worker, "approve", each.id, "--yes", "--as", "ann", code=1)
    assert not {"expired", "abandoned"} & ledger.runs("add").keys()


def test_a_caller_that_does_not_wait_is_rejected(worker: Worker, table: Any, ledger: Ledger) -> None:
    with ToolExecutor(timeout_s=TIMEOUT_S) as tools:
        result = tools.execute("desk.add", {"key": "unparked"})
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.APPROVAL_REQUIRED)
    assert "`park=True`" in result.content
    assert ledger.runs("add")["unparked"] == 0
    assert not table.exists(keys.parked_key(result.task_id))


def test_a_call_that_needs_no_approval_runs_at_once(tools: ToolExecutor) -> None:
    assert tools.execute("desk.look", {"key": "free"}).outcome is Outcome.OK
    assert tools.execute("plain.add", {"key": "free"}).outcome is Outcome.OK


def test_only_what_says_that_it_is_harmless_runs_unasked(tools: ToolExecutor, table: Any) -> None:
    assert tools.execute("careful.look", {"key": "read only"}).outcome is Outcome.OK
    for tool in ("add", "renew"):
        pending = tools.submit(f"careful.{tool}", {"key": "careful"})
        deny(table, pending.id)
        assert pending.result().error_code is ErrorCode.APPROVAL_DENIED


def test_wrong_arguments_are_rejected_before_anybody_is_asked(tools: ToolExecutor, table: Any) -> None:
    result = tools.execute("desk.add", {"key": 7.5, "wait_s": "long"})
    assert result.error_code is ErrorCode.INVALID_ARGUMENTS


def test_parked_calls_take_no_slot(tools: ToolExecutor, table: Any) -> None:
    many = [add(tools, f"slot {number}") for number in range(20)]
    for each in many:
        wait_for_parked(table, each.id)
    assert tools.execute("plain.add", {"key": "beside"}).outcome is Outcome.OK
    assert not table.exists(keys.LEASES), "nothing of them is in a worker"
    for each in many:
        approve(table, each.id)
    assert {each.result().outcome for each in many} == {Outcome.OK}


def test_two_people_approve_where_the_server_says_so(tools: ToolExecutor, table: Any) -> None:
    pending = add(tools, "four eyes", "strict")
    view = wait_for_parked(table, pending.id)
    assert parked_calls.decide(table, view, is_approved=True, by="ann") is Decided.COUNTED
    assert not pending.done()
    assert parked_calls.decide(table, view, is_approved=True, by="bob") is Decided.APPROVED
    assert pending.result().outcome is Outcome.OK
    assert only_entry(table, pending.id).approval == "approved by ann, bob"


def test_what_was_approved_is_what_runs(tools: ToolExecutor, table: Any, ledger: Ledger) -> None:
    """Agents may write entries of the in-flight table."""
    pending = add(tools, "seen")
    view = wait_for_parked(table, pending.id)
    head, line_break, text = table.hget(keys.UNACKED, pending.id).rpartition(b"\n")
    message = json.loads(text)
    arguments, *more = json.loads(base64.b64decode(message["body"]))
    arguments[2] = {"key": "unseen"}
    message["body"] = base64.b64encode(json.dumps([arguments, *more]).encode()).decode()
    table.hset(keys.UNACKED, pending.id, head + line_break + json.dumps(message).encode())
    assert parked_calls.decide(table, view, is_approved=True, by="ann") is Decided.APPROVED
    result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.APPROVAL_REQUIRED)
    assert "approved with other arguments" in result.content
    assert not {"seen", "unseen"} & ledger.runs("add").keys()


def test_an_agent_cancels_a_parked_call(tools: ToolExecutor, table: Any, ledger: Ledger) -> None:
    pending = add(tools, "cancelled")
    view = wait_for_parked(table, pending.id)
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED
    # Soon after the cancellation, everything that is known of it is deleted.
    assert parked_calls.decide(table, view, is_approved=True, by="ann") in {Decided.WITHDRAWN, Decided.UNKNOWN}
    assert ledger.runs("add")["cancelled"] == 0


def test_another_executor_waits_for_it(tools: ToolExecutor, table: Any) -> None:
    pending = add(tools, "attached")
    wait_for_parked(table, pending.id)
    other = ToolExecutor(timeout_s=TIMEOUT_S, park=True).attach(pending.id, "desk.add")
    assert other.parked is not None
    approve(table, pending.id)
    assert other.result().content == "attached"
    assert ToolExecutor(timeout_s=TIMEOUT_S).attach(pending.id, "desk.add").result().content == "attached"


async def run_async(table: Any) -> ToolResult:
    async with AsyncToolExecutor(timeout_s=TIMEOUT_S, park=True) as tools:
        pending = await tools.submit("desk.add", {"key": "async"})
        other = await tools.attach(pending.id, "desk.add")
        approve(table, pending.id)
        assert (await pending.result()).outcome is Outcome.OK
        return await other.result()


def test_asyncio_agents_wait_too(worker: Worker, table: Any) -> None:
    assert asyncio.run(run_async(table)).content == "async"


def sign(key: str) -> Any:
    return tool_signature("desk.add", {"key": key}, park=True)


def read(result: Any) -> ToolResult:
    return ToolResult.model_validate(result)


def test_celery_sees_a_task_that_is_not_done(worker: Worker, table: Any) -> None:
    sent = sign("celery").delay()
    wait_until(lambda: sent.state == "PARKED", "its state", TIMEOUT_S)
    assert not sent.ready()
    approve(table, sent.id)
    assert read(sent.get(timeout=TIMEOUT_S)).content == "celery"
    assert sent.state == "SUCCESS"


def test_a_revoked_call_waits_for_nobody(worker: Worker, table: Any, ledger: Ledger) -> None:
    sent = sign("revoked").delay()
    view = wait_for_parked(table, sent.id)
    revoke(worker, sent.id)
    wait_until(lambda: sent.state == "REVOKED", "Celery knows", TIMEOUT_S)
    assert not [each for each in parked_views.load_waiting(table, 100)[0] if each.id == sent.id]
    decided = parked_calls.decide(table, view, is_approved=True, by="ann")
    assert decided in (Decided.GONE, Decided.EXPIRED, Decided.LATE), decided
    assert only_entry(table, sent.id).outcome == "cancelled"
    assert ledger.runs("add")["revoked"] == 0


def test_a_chain_waits_for_its_parked_call(worker: Worker, table: Any, ledger: Ledger) -> None:
    last = chain(sign("first"), sign("second")).delay()
    wait_for_parked(table, last.parent.id)
    assert ledger.runs("add")["second"] == 0
    approve(table, last.parent.id)
    approve(table, last.id)
    assert read(last.get(timeout=TIMEOUT_S)).content == "second"
    assert read(last.parent.get(timeout=TIMEOUT_S)).content == "first"


def test_a_chord_waits_for_the_parked_calls_of_its_header(worker: Worker, table: Any) -> None:
    body = chord([sign("one"), tool_signature("desk.look", {"key": "two"}), sign("three")], sign("body")).delay()
    one, two, three = body.parent.results
    assert read(two.get(timeout=TIMEOUT_S)).content == "two"
    approve(table, one.id)
    deny(table, three.id)
    approve(table, body.id)
    assert read(body.get(timeout=TIMEOUT_S)).content == "body"
    assert read(three.get(timeout=TIMEOUT_S)).error_code is ErrorCode.APPROVAL_DENIED


def test_a_group_waits_for_them(worker: Worker, table: Any) -> None:
    both = group(sign("left"), sign("right")).delay()
    for each in reversed(both.results):
        approve(table, each.id)
    assert [read(each).content for each in both.get(timeout=TIMEOUT_S)] == ["left", "right"]


def test_a_foreign_producer_asks_for_it_in_its_message(worker: Worker, table: Any, redis_url: str) -> None:
    with Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False) as foreign:
        sent = foreign.send_task("tarsy.call_tool", ["desk", "add", {"key": "far"}, {"park": True}], queue="mcp.desk")
        approve(table, sent.id)
        assert sent.get(timeout=TIMEOUT_S)["content"] == "far"


def run_cli(worker: Worker, *words: str, code: int = 0) -> str:
    done = run_command(*words, environment=worker.environment)
    assert done.returncode == code, done
    return done.stdout + done.stderr


def test_people_decide_on_the_command_line(worker: Worker, tools: ToolExecutor, table: Any) -> None:
    first, second = add(tools, "by hand"), add(tools, "by hand, too")
    for each in (first, second):
        wait_for_parked(table, each.id)
    listed = json.loads(run_cli(worker, "inbox", "--json"))
    assert {each["id"] for each in listed["calls"]} == {first.id, second.id}
    assert listed["calls"][0]["tool"] == "desk.add"
    shown = run_cli(worker, "inbox")
    assert "by hand, too" in shown
    assert "sre (not verified)" in " ".join(shown.split()), "any agent may claim that name"
    assert f"{first.id}: approved" in run_cli(worker, "approve", first.id, "--yes", "--as", "ann")
    assert "it was decided before" in run_cli(worker, "approve", first.id, "--yes", code=1)
    assert f"{second.id}: denied" in run_cli(worker, "deny", second.id, "--as", "bob", "--why", "no need")
    assert first.result().outcome is Outcome.OK
    assert "denied by bob: no need" in second.result().content
    assert "no calls wait for people" in run_cli(worker, "inbox")
    assert "not found" in run_cli(worker, "approve", "nothing", "--yes", code=1)


def test_no_agent_decides(worker: Worker, tools: ToolExecutor, table: Any, redis_url: str) -> None:
    pending = add(tools, "stolen")
    view = wait_for_parked(table, pending.id)
    with (
        redis.Redis.from_url(os.environ["TARSY_REDIS_URL"]) as agent,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        parked_calls.decide(agent, view, is_approved=True, by="ann")
    table.acl_log_reset()
    deny(table, pending.id)
    assert pending.result().error_code is ErrorCode.APPROVAL_DENIED

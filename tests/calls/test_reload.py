"""Servers and policies that change while workers run: every worker takes them, and no call is lost."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.broker import keys, parked_calls, parked_views
from tests.calls.audit_entries import only_entry
from tests.calls.deployment import DESK, TAKEN_S, Deployment
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import is_alive, wait_until


@pytest.fixture(scope="module")
def deployment(
    start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    with redis.Redis.from_url(redis_url) as client:
        yield Deployment(start_worker, tmp_path_factory.mktemp("shared"), client)


@pytest.fixture(autouse=True)
def _begins_with_the_desk(deployment: Deployment) -> Iterator[None]:
    yield
    if {name for name in deployment.saved if name != "desk"} or deployment.more:
        deployment.serve(DESK)


def call(tools: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    return tools.execute(ToolCall(id="1", name=name, arguments=arguments))


def test_a_server_that_is_added_is_served_by_all_workers(deployment: Deployment, tmp_path: Path) -> None:
    deployment.serve({**DESK, "new": witness(Ledger(tmp_path / "new"))})
    deployment.wait_for(lambda record: record.healthy, "new")
    with ToolExecutor(timeout_s=20) as tools:
        assert {tool.server for tool in tools.list_tools()} == {"desk", "new"}
        calls = [tools.submit(ToolCall(name="new.look", arguments={"key": str(n), "wait_s": 0.2})) for n in range(40)]
        assert {each.result().outcome for each in calls} == {Outcome.OK}


def test_a_changed_server_gets_a_new_session_beside_the_old(deployment: Deployment, tmp_path: Path) -> None:
    old, new = Ledger(tmp_path / "old"), Ledger(tmp_path / "new")
    deployment.serve({**DESK, "books": witness(old)})
    deployment.wait_for(lambda record: record.healthy, "books")
    processes = [each for worker in deployment.workers for each in worker.find_children(str(old.path))]
    with ToolExecutor(timeout_s=30) as tools:
        running = [tools.submit(ToolCall(name="books.add", arguments={"key": f"r{n}", "wait_s": 12})) for n in range(8)]
        wait_until(lambda: len(old.lines("run")) == len(running), "the calls run")
        deployment.serve({**DESK, "books": witness(new, timeouts={"call_s": 50})})
        wait_until(lambda: new.starts == len(deployment.workers), "each worker has a new session")
        assert not any(each.done() for each in running), "they run on the old session"
        wait_until(lambda: call(tools, "books.add", key="later").outcome is Outcome.OK and new.runs(), "swapped")
        assert not old.runs()["later"] or new.runs()["later"]
        assert {each.result().outcome for each in running} == {Outcome.OK}
    wait_until(lambda: not any(map(is_alive, processes)), "the old processes end")
    assert {key: runs for key, runs in old.runs().items() if key != "later"} == {f"r{n}": 1 for n in range(8)}


def test_a_cache_of_answers_is_used_once_it_is_configured(deployment: Deployment, tmp_path: Path) -> None:
    server = witness(Ledger(tmp_path / "kept"))
    deployment.serve({**DESK, "kept": server})
    deployment.serve({**DESK, "kept": {**server, "cache": {"tools": {"look": 60}}}})
    with ToolExecutor(timeout_s=20) as tools:
        wait_until(lambda: call(tools, "kept.look", key="a").cached, "answers are kept")


def test_what_was_decided_counts_once_nothing_asks(deployment: Deployment, tmp_path: Path) -> None:
    ledger, client = Ledger(tmp_path / "guarded"), deployment.client
    asks = {"guarded": witness(ledger, approval="always")}
    other = {"other": witness(Ledger(tmp_path / "other"), approval="always")}
    deployment.serve({**DESK, **asks, **other})
    deployment.wait_for(lambda record: record.healthy, "guarded")
    with ToolExecutor(timeout_s=30, park=True) as tools:
        names = ("no, one asks", "no, none asks", "yes")
        calls = {name: tools.submit(ToolCall(name="guarded.add", arguments={"key": name})) for name in names}
        for each in calls.values():
            wait_until(lambda each=each: each.parked, "it is parked")

        def decide(name: str, *, is_approved: bool) -> ToolResult:
            view = parked_views.load(client, calls[name].id)
            assert view is not None
            parked_calls.decide(client, view, is_approved=is_approved, by="ann")
            return calls[name].result()

        free = {"guarded": witness(ledger)}
        deployment.serve({**DESK, **free, **other})
        assert decide("no, one asks", is_approved=False).error_code is ErrorCode.APPROVAL_DENIED
        deployment.serve({**DESK, **free})
        assert decide("no, none asks", is_approved=False).error_code is ErrorCode.APPROVAL_DENIED
        assert decide("yes", is_approved=True).outcome is Outcome.OK
    assert len(ledger.lines("run")) == 1
    found = [only_entry(client, each.id).approval for each in calls.values()]
    assert found == ["denied by ann", "denied by ann", "approved by ann"]


def test_an_unchanged_server_is_not_touched(deployment: Deployment, tmp_path: Path) -> None:
    kept = Ledger(tmp_path / "kept")
    servers = {**DESK, "books": witness(kept)}
    deployment.serve(servers)
    deployment.wait_for(lambda record: record.healthy, "books")
    deployment.serve({**servers, "more": witness(Ledger(tmp_path / "more"))})
    for worker in deployment.workers:
        os.kill(worker.pid, signal.SIGHUP)
    deployment.wait_for(lambda record: record.healthy, "more")
    deployment.serve(servers)
    assert kept.starts == len(deployment.workers)
    assert {record.sessions_opened for record in deployment.records("books")} == {1}


def test_calls_that_wait_for_a_removed_server_are_answered(deployment: Deployment, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "gone")
    deployment.serve({**DESK, "gone": witness(ledger, max_concurrency=1)})
    deployment.wait_for(lambda record: record.healthy, "gone")
    with ToolExecutor(timeout_s=30) as tools:
        held = [tools.submit(ToolCall(name="gone.add", arguments={"key": f"held{n}", "wait_s": 30})) for n in range(2)]
        wait_until(lambda: len(ledger.lines("run")) == len(held), "one call runs in each worker")
        waiting = [tools.submit(ToolCall(name="gone.add", arguments={"key": f"w{n}"})) for n in range(6)]
        deployment.save(DESK)
        found = [each.result() for each in waiting]
        assert {each.error_code for each in found} == {ErrorCode.SERVER_REMOVED}
        assert {each.outcome for each in found} == {Outcome.UNAVAILABLE}
        assert "`gone` was removed" in found[0].content
        assert {each.result().outcome for each in held} == {Outcome.UNKNOWN}, "they were sent"
        assert call(tools, "gone.add", key="late").error_code is ErrorCode.SERVER_REMOVED
        assert call(tools, "desk.echo", text="here").outcome is Outcome.OK
    assert not any(ledger.runs()[f"w{n}"] for n in range(6))
    wait_until(lambda: not deployment.records("gone"), "no worker reports it")
    wait_until(lambda: not deployment.client.zcard(keys.serving_key("gone")), "no worker announces it")
    for worker in deployment.workers:
        wait_until(lambda each=worker: not each.find_children(str(ledger.path)), "its process has ended")


def test_calls_that_wait_for_its_start_are_answered(deployment: Deployment) -> None:
    slow = {"command": sys.executable, "args": ["-c", "import signal; signal.pause()"]}
    deployment.serve({**DESK, "slow": slow})
    with ToolExecutor(timeout_s=60) as tools:
        calls = [tools.submit(ToolCall(name="slow.look", arguments={"key": f"{n}"})) for n in range(4)]
        name = keys.queue("slow")
        wait_until(lambda: not deployment.client.llen(name), "workers have them")
        deployment.save(DESK)
        assert {each.result(20).error_code for each in calls} == {ErrorCode.SERVER_REMOVED}


def test_a_renamed_server_is_another_one(deployment: Deployment, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "named")
    deployment.serve({**DESK, "old": witness(ledger)})
    deployment.wait_for(lambda record: record.healthy, "old")
    with ToolExecutor(timeout_s=30) as tools, ToolExecutor(["old"], timeout_s=30) as behind:
        running = tools.submit(ToolCall(name="old.add", arguments={"key": "running", "wait_s": 1}))
        wait_until(lambda: ledger.lines("run"), "it runs")
        deployment.serve({**DESK, "new": witness(ledger)})
        assert call(tools, "new.look", key="renamed").outcome is Outcome.OK
        assert running.result().outcome is Outcome.OK, "it ends within the grace"
        wait_until(lambda: not deployment.records("old"), "the old name is gone")
        unknown = call(tools, "old.look", key="late")
        assert unknown.error_code is ErrorCode.UNKNOWN_SERVER
        assert "new" in unknown.content
        assert call(behind, "old.look", key="late").error_code is ErrorCode.SERVER_REMOVED
    assert ledger.runs() == {"running": 1, "renamed": 1}


def test_two_servers_that_swap_their_names_are_told_apart(deployment: Deployment, tmp_path: Path) -> None:
    first, second = Ledger(tmp_path / "first"), Ledger(tmp_path / "second")
    deployment.serve({**DESK, "a": witness(first), "b": witness(second)})
    deployment.wait_for(lambda record: record.healthy, "b")
    with ToolExecutor(timeout_s=30) as tools:
        assert call(tools, "a.look", key="before").outcome is Outcome.OK
        deployment.serve({**DESK, "a": witness(second), "b": witness(first)})
        wait_until(lambda: all("changed configuration" in worker.log for worker in deployment.workers), "swapped")
        starts = 2 * len(deployment.workers)
        wait_until(lambda: first.starts == second.starts == starts, "all sessions are new")
        wait_until(lambda: call(tools, "a.look", key="after") and second.runs()["after"], "calls go to the new one")
        assert call(tools, "b.look", key="other").outcome is Outcome.OK
    assert first.runs()["other"] + second.runs()["other"] == 1


def test_a_server_that_comes_back_in_time_is_kept(deployment: Deployment, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "back")
    servers = {**DESK, "back": witness(ledger)}
    deployment.serve(servers)
    deployment.wait_for(lambda record: record.healthy, "back")
    deployment.serve(DESK)
    deployment.serve(servers)
    with ToolExecutor(timeout_s=30) as tools:
        assert call(tools, "back.look", key="a").outcome is Outcome.OK


def test_a_file_that_is_saved_half_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    text = json.dumps({"mcpServers": {**DESK, "late": witness(Ledger(tmp_path / "late"))}})
    before = {record.configuration for record in deployment.records("desk")}
    tools = ToolExecutor(["desk"], timeout_s=20)
    deployment.path.write_text(text[:-10])
    deployment.wait_for(lambda record: bool(record.configuration_error))
    for record in deployment.records("desk"):
        assert record.configuration in before
        assert record.configuration_error
        assert "mcp.json:1:" in record.configuration_error
    for worker in deployment.workers:
        assert "the changed configuration was not taken" in worker.log
    assert call(tools, "desk.echo", text="here").outcome is Outcome.OK
    tools.close()
    deployment.saved = {"late": {}}
    with deployment.path.open("a") as file:
        file.seek(0)
        file.truncate()
        file.write(text)
    deployment.wait_for(lambda record: record.configuration not in before and not record.configuration_error)
    deployment.wait_for(lambda record: record.healthy, "late")


def test_an_entry_that_is_wrong_is_refused_with_all_others(deployment: Deployment, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "good")
    deployment.save({**DESK, "good": witness(ledger), "bad": {"command": "x", "timeouts": {"call_s": "soon"}}})
    deployment.wait_for(lambda record: "call_s" in (record.configuration_error or ""))
    assert not ledger.starts
    deployment.save(DESK)
    deployment.wait_for(lambda record: record.configuration_error is None)


def test_sighup_takes_a_configuration_that_looks_the_same(deployment: Deployment) -> None:
    taken = [worker.log.count("configuration") for worker in deployment.workers]
    for worker in deployment.workers:
        os.kill(worker.pid, signal.SIGHUP)
    for worker, count in zip(deployment.workers, taken, strict=True):
        wait_until(lambda w=worker, c=count: w.log.count("configuration") > c, "it was taken", TAKEN_S)
    assert not any("Restarting" in worker.log for worker in deployment.workers)


def test_a_policy_is_taken_with_the_configuration(deployment: Deployment) -> None:
    with ToolExecutor(timeout_s=20) as tools:
        assert call(tools, "desk.echo", text="here").outcome is Outcome.OK
        deployment.serve(DESK, policy={"servers": {"desk": {"deny": ["echo"]}}})
        assert call(tools, "desk.echo", text="here").error_code is ErrorCode.NOT_PERMITTED
        limits = [{"tools": ["desk.echo"], "calls_per_day": 1}]
        deployment.serve(DESK, policy={"limits": limits})
        found = [call(tools, "desk.echo", text="here") for _ in range(2)]
        assert [each.error_code for each in found] == [None, ErrorCode.RATE_LIMITED]
        deployment.serve(DESK)
        assert call(tools, "desk.echo", text="here").outcome is Outcome.OK


def test_a_policy_is_taken_for_isolated_sessions_too(deployment: Deployment) -> None:
    with ToolExecutor(session="run", timeout_s=20) as tools:
        assert call(tools, "desk.echo", text="here").outcome is Outcome.OK
        deployment.serve(DESK, policy={"servers": {"desk": {"deny": ["echo"]}}})
        assert call(tools, "desk.echo", text="here").error_code is ErrorCode.NOT_PERMITTED
        deployment.serve(DESK, policy={"limits": [{"tools": ["desk.wait"], "calls_per_day": 1}]})
        found = [call(tools, "desk.wait", seconds=0) for _ in range(2)]
        assert [each.error_code for each in found] == [None, ErrorCode.RATE_LIMITED]


def test_no_call_is_lost_while_servers_come_and_go(deployment: Deployment, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "busy")
    busy = {**DESK, "busy": witness(ledger)}
    deployment.serve(busy)
    deployment.wait_for(lambda record: record.healthy, "busy")
    with ToolExecutor(timeout_s=60) as tools:
        calls = [tools.submit(ToolCall(name="busy.add", arguments={"key": f"{n}", "wait_s": 0.5})) for n in range(64)]
        done: list[ToolResult] = []

        def go_on(until: Callable[[], object]) -> None:
            while not until():
                done.append(calls.pop(0).result())
                number = len(done) + len(calls)
                calls.append(tools.submit(ToolCall(name="busy.add", arguments={"key": f"{number}", "wait_s": 0.5})))

        for number in range(3):
            come = {**busy, f"come{number}": witness(Ledger(tmp_path / f"come{number}"))}
            deployment.save(come)
            go_on(lambda n=number: len(deployment.records(f"come{n}")) == len(deployment.workers))
            deployment.save(busy)
            go_on(lambda n=number: not deployment.records(f"come{n}"))
        done += [each.result() for each in calls]
    assert {each.outcome for each in done} == {Outcome.OK}
    assert ledger.runs() == {f"{n}": 1 for n in range(len(done))}


def test_where_kombu_fetches_the_queues_follow_too(
    start_worker: StartWorker, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "broker_transport_options = {'queue_order_strategy': 'round_robin'}"
    with redis.Redis.from_url(redis_url) as client:
        deployment = Deployment(start_worker, tmp_path, client, [settings])
        monkeypatch.setenv("TARSY_MCP_CONFIG", str(deployment.path))
        own = {"own": witness(Ledger(tmp_path / "own"))}
        deployment.save(own)
        deployment.wait_for(lambda record: record.healthy, "own")
        with ToolExecutor(timeout_s=20) as tools:
            assert call(tools, "own.look", key="a").outcome is Outcome.OK
            deployment.save({})
            wait_until(lambda: not deployment.records("own"), "it is removed")
            assert call(tools, "own.look", key="b").error_code is ErrorCode.SERVER_REMOVED
        deployment.workers[0].stop()


def test_commands_change_the_servers_of_running_workers(deployment: Deployment, tmp_path: Path) -> None:
    environment = {**deployment.workers[0].environment, "TARSY_MCP_CONFIG": str(deployment.path)}
    ledger = Ledger(tmp_path / "cli")
    entry = witness(ledger)
    added = run_command(
        *("servers", "add", "cli", "--json", "--", entry["command"], *entry["args"]), environment=environment
    )
    assert added.returncode == 0, added.stderr
    deployment.wait_for(lambda record: record.healthy, "cli")
    digest = json.loads(added.stdout)["digest"]
    assert run_command("servers", "disable", "cli", "--digest", digest, environment=environment).returncode == 0
    again = run_command("servers", "remove", "cli", "--digest", digest, environment=environment)
    assert again.returncode == 2
    assert "somebody has changed it since you read it" in again.stderr
    assert run_command("servers", "remove", "cli", environment=environment).returncode == 0
    wait_until(lambda: not deployment.records("cli"), "it is removed")

    def asked() -> int:
        """How many workers have replied in time."""
        return len(json.loads(run_command("servers", "reload", "--json", environment=environment).stdout)["asked"])

    wait_until(lambda: asked() == len(deployment.workers), "all are asked")
    assert run_command("servers", "add", "x", environment=environment).returncode == 2

"""Changes of watched resources reach the agent, in both eras of MCP; an agent that no longer watches costs nothing."""

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

import tarsy_tasks
from tarsy_tasks import AsyncToolExecutor, ErrorCode, OutcomeError, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.watches import MOST_OF_ONE
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.telemetry.audit import AuditFilter, read_audit
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.gates import make_gate, open_gate
from tests.processes import Worker, wait_until
from tests.redis_users import as_user
from tests.servers import library, noticeboard
from tests.servers.noticeboard import HELD, MISSING, NOTICE, SECRET
from tests.warm_start import warm_command

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 4}\n'

eras = pytest.mark.parametrize("server", ["new", "old"])


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledgers")


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, ledgers: Path) -> Worker:
    def serve(name: str, *options: str, **settings: Any) -> dict[str, Any]:
        return {**warm_command(noticeboard.__file__, str(ledgers / name), *options), **settings}

    servers = {
        "new": serve("new"),
        "old": serve("old", "--handshake", cache={"resources": 600}),
        "apart": serve("apart", "--handshake", session="per_call"),
        "idle": serve("idle", start="on_demand", idle_stop_s=1),
        "mute": warm_command(library.__file__),
    }
    return start_worker(servers, settings=SHORT_LEASE)


@pytest.fixture
def tools() -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=20) as tools:
        yield tools


@pytest.fixture
def table(redis_url: str) -> Iterator[Any]:
    """Redis, where no watch is left by the test before: that of an agent which has ended may stay for its lease."""
    with redis.Redis.from_url(redis_url) as found:
        wait_until(lambda: not found.zcard(keys.WATCHES), "no watch is left", 60)
        yield found


def pin(tools: ToolExecutor, server: str, text: str, uri: str = NOTICE) -> None:
    assert tools.execute(f"{server}.pin", {"uri": uri, "text": text}).content == text


def count(path: Path, line: str) -> int:
    return path.read_text().splitlines().count(line) if path.exists() else 0


@eras
def test_a_change_reaches_who_watches(server: str, tools: ToolExecutor) -> None:
    with tools.watch_resource(NOTICE, server=server) as watch:
        for text in ("open", "closed"):
            pin(tools, server, text)
            change = next(watch)
            assert (change.server, change.uri, change.is_certain) == (server, NOTICE, True)
            assert tools.read_resource(NOTICE, server=server).content == text


@eras
def test_asyncio_agents_watch_with_async_for(server: str) -> None:
    async def watch_twice() -> list[str]:
        heard: list[str] = []
        async with AsyncToolExecutor(timeout_s=20) as tools, await tools.watch_resource(NOTICE, server=server) as watch:
            await tools.execute(f"{server}.pin", {"uri": NOTICE, "text": "a"})
            async for change in watch:
                heard.append(change.uri)
                if len(heard) == 2:
                    break
                await tools.execute(f"{server}.pin", {"uri": NOTICE, "text": "b"})
        return heard

    assert asyncio.run(watch_twice()) == [NOTICE, NOTICE]


def test_several_watches_are_one_subscription(tools: ToolExecutor, ledgers: Path, table: Any) -> None:
    uri = "notice://board/shared"
    with tools.watch_resource(uri, server="old") as one, tools.watch_resource(uri, server="old") as other:
        assert count(ledgers / "old", f"subscribe {uri}") == 1
        assert inspect_sessions()["old"]["watched"] == 2
        pin(tools, "old", "x", uri)
        assert [next(each).uri for each in (one, other)] == [uri, uri]
        one.close()
        wait_until(lambda: table.zcard(keys.WATCHES) == 1, "one of them has ended")
        assert not count(ledgers / "old", f"unsubscribe {uri}")
        pin(tools, "old", "y", uri)
        assert next(other).uri == uri
        assert list(one) == []
    wait_until(lambda: count(ledgers / "old", f"unsubscribe {uri}"), "nobody watches any more")


def inspect_sessions() -> dict[str, Any]:
    url = as_user(tarsy_tasks.app.conf.broker_url, "operator")
    with closing(build_app({"broker_url": url, "result_backend": url})) as app:
        [answer] = app.control.broadcast("mcp_sessions", reply=True, timeout=20, limit=1)
    return next(iter(answer.values()))


def test_a_part_of_a_resource_counts_and_many_are_one(tools: ToolExecutor) -> None:
    """The watch is not read meanwhile."""
    uri = "notice://board/parts"
    with tools.watch_resource(uri, server="old") as watch:
        tools.execute("old.pin_parts", {"uri": uri, "count": 1})
        assert next(watch).uri == f"{uri}/0"
        tools.execute("old.pin_parts", {"uri": uri, "count": 1000})
        changes = [next(watch)]
        while changes[-1].is_certain:
            changes.append(next(watch))
        assert len(changes) <= 101
        assert changes[-1].uri == uri


def test_a_session_of_its_own_for_each_call_is_no_hindrance(tools: ToolExecutor) -> None:
    with tools.watch_resource("notice://board/apart", server="apart") as watch:
        assert inspect_sessions()["apart"]["watched"] == 1
        watch.close()
        assert list(watch) == []


def test_a_watched_server_is_not_idle(tools: ToolExecutor) -> None:
    with tools.watch_resource(NOTICE, server="idle") as watch:
        sessions = wait_until(lambda: inspect_state("idle"), "it has a session")
        with ThreadPoolExecutor(1) as thread:
            change = thread.submit(next, watch)
            wait_until(lambda: inspect_state("new"), "time passes")
            pin(tools, "idle", "still here")
            assert change.result(20).is_certain
        assert inspect_state("idle") == sessions
    wait_until(lambda: not inspect_state("idle"), "it is stopped")


def inspect_state(server: str) -> int:
    """How many sessions there were; 0 if there is none now."""
    about = inspect_sessions()[server]
    return about["sessions_opened"] if about["state"] == "connected" else 0


def test_what_is_not_accepted_is_said(tools: ToolExecutor, table: Any) -> None:
    with pytest.raises(OutcomeError, match="no such notice") as refused:
        tools.watch_resource(MISSING, server="old")
    assert SECRET not in str(refused.value)
    assert refused.value.result.error_code is ErrorCode.SERVER_ERROR
    with pytest.raises(OutcomeError, match="does not report changes"):
        tools.watch_resource("library://any", server="mute")
    with pytest.raises(ValueError, match="give the `server`"):
        tools.watch_resource(NOTICE)
    with ToolExecutor(session="run", run_id="r", timeout_s=20) as isolated, pytest.raises(ValueError, match="isolated"):
        isolated.watch_resource(NOTICE, server="old")
    assert not table.zcard(keys.WATCHES)


def test_a_watch_lost_while_it_begins_is_not_kept(tools: ToolExecutor, table: Any, ledgers: Path) -> None:
    gate = make_gate(ledgers / "old.gate")
    with ThreadPoolExecutor(1) as thread:
        beginning = thread.submit(tools.watch_resource, HELD, server="old")
        wait_until(lambda: count(ledgers / "old", f"subscribe {HELD}"), "the server is asked")
        [record] = table.keys("tarsy:watch:*")
        table.delete(record)
        wait_until(lambda: not table.zcard(keys.WATCHES), "the worker has found that it is gone")
        open_gate(gate)
        with pytest.raises(OutcomeError, match="was lost while the server was asked"):
            beginning.result(60)
    wait_until(lambda: count(ledgers / "old", f"unsubscribe {HELD}"), "nobody watches it")


def test_one_agent_cannot_have_any_number_of_watches(table: Any) -> None:
    async def watch_all() -> tuple[int, list[BaseException]]:
        async with AsyncToolExecutor(timeout_s=60) as tools:
            asked = (tools.watch_resource(f"notice://board/{n}", server="old") for n in range(MOST_OF_ONE + 3))
            found = await asyncio.gather(*asked, return_exceptions=True)
            refused = [each for each in found if isinstance(each, BaseException)]
            return table.zcard(keys.WATCHES), refused

    kept, refused = asyncio.run(watch_all())
    assert (kept, len(refused)) == (MOST_OF_ONE, 3)
    assert f"at most {MOST_OF_ONE} of one agent" in str(refused[0])


def test_a_watch_ends_with_its_executor_or_when_it_is_dropped(table: Any) -> None:
    tools = ToolExecutor(timeout_s=20)
    dropped = tools.watch_resource(NOTICE, server="old")
    kept = tools.watch_resource(NOTICE, server="new")
    assert table.zcard(keys.WATCHES) == 2
    del dropped
    gc.collect()
    wait_until(lambda: table.zcard(keys.WATCHES) == 1, "nobody has the first one any more")
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(list[Any], kept)
        tools.close()
        assert reading.result(20) == []
    wait_until(lambda: not table.zcard(keys.WATCHES), "the other one has ended")


FORKING = """
import gc, os, sys
from tarsy_tasks import ToolExecutor

uri, how = sys.argv[1:]
tools = ToolExecutor(timeout_s=40)
watch = tools.watch_resource(uri, server="old")
child = os.fork()
if child == 0:
    try:
        next(watch)
    except RuntimeError as error:
        assert "forked child" in str(error), error
    if how == "close":
        tools.close()
        watch.close()
    del watch
    gc.collect()
    # After what was to be done before, and with what is to be done at the end of a process.
    answer = ToolExecutor(timeout_s=40).execute("old.pin", {"uri": "notice://board/x", "text": "child"})
    sys.exit(answer.content != "child")
assert os.waitpid(child, 0)[1] == 0
print("forked", flush=True)
input()
tools.execute("old.pin", {"uri": uri, "text": "x"})
assert next(watch).is_certain
"""


@pytest.mark.parametrize("how", ["close", "leave"])
def test_a_forked_child_does_not_end_a_watch(table: Any, how: str) -> None:
    program = [sys.executable, "-c", FORKING, f"notice://board/forked-{how}", how]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdin is not None
        assert agent.stdout.readline() == "forked\n"
        assert table.keys("tarsy:watch:*")
        agent.stdin.write("\n")
        agent.stdin.flush()
        assert agent.wait(60) == 0


def test_a_watch_ends_when_its_agent_is_gone(table: Any, ledgers: Path) -> None:
    uri = "notice://board/left"
    program = (
        "from tarsy_tasks import ToolExecutor\n"
        f"watch = ToolExecutor(timeout_s=20).watch_resource({uri!r}, server='old')\n"
        "print('watching', flush=True)\n"
        "next(watch)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"watching\n"
        agent.kill()
    [record] = table.keys("tarsy:watch:*")
    assert 0 < table.ttl(record) <= 30
    table.pexpire(record, 1)  # what is left of its lease
    wait_until(lambda: count(ledgers / "old", f"unsubscribe {uri}"), "its subscription has ended")
    assert not table.zcard(keys.WATCHES)


def test_an_agent_cannot_give_itself_a_longer_lease(table: Any, tools: ToolExecutor) -> None:
    with tools.watch_resource(NOTICE, server="old"):
        [record] = table.keys("tarsy:watch:*")
        table.expire(record, 10_000_000)
        wait_until(lambda: table.ttl(record) <= 30, "it is as long as for all")


def test_watches_are_audited_and_shown(table: Any, tools: ToolExecutor) -> None:
    uri = "notice://board/x?api_key=hunter2hunter2"
    with tools.watch_resource(uri, server="old") as watch:
        pin(tools, "old", "x", uri)
        change = next(watch)
    assert "hunter2" not in change.uri
    wanted = AuditFilter(server="old", operation="resources/subscribe")
    [entry] = wait_until(lambda: read_audit(table, wanted, limit=1).entries, "it is in the audit")
    assert (entry.server, entry.outcome) == ("old", "ok")
    assert "hunter2" not in json.dumps(entry.arguments)


def test_the_command_line_watches(worker: Worker, tools: ToolExecutor, table: Any) -> None:
    with ThreadPoolExecutor(1) as thread:
        command = ["resources", "watch", NOTICE, "--server", "old", "--count", "1", "--json"]
        watching = thread.submit(run_command, *command, environment=worker.environment)
        wait_until(lambda: table.zcard(keys.WATCHES), "it watches")

        def is_shown() -> bool:
            pin(tools, "old", "shown")  # again and again, because its subscription may not have begun
            return watching.done()

        wait_until(is_shown, "the change is printed", 60)
        done = watching.result()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"server": "old", "uri": NOTICE, "is_certain": True}


def test_a_server_that_asks_for_sampling_or_roots_is_refused(tools: ToolExecutor) -> None:
    """And its call goes on."""
    result = tools.execute("old.ask_back")
    assert result.structured is not None, result.content
    assert len(result.structured["result"]) == 2

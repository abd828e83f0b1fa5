"""A result that is too long for a model is cut, and the whole can be read by its handle."""

import asyncio
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import (
    AsyncToolExecutor,
    ErrorCode,
    Outcome,
    ResultNotFound,
    ToolExecutor,
    ToolResult,
    tool_signature,
)
from tarsy_tasks.adapters.anthropic import anthropic_tools
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.large_results import unpack
from tarsy_tasks.telemetry.audit import AuditFilter, read_audit
from tests.calls.audit_entries import only_entry
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.gates import make_gate, open_gate
from tests.plants import know
from tests.processes import Worker, environment_of, free_port, listening, wait_until
from tests.servers import lengthy
from tests.warm_start import warm_command

LIMIT = 20_000
LINES = 5000
QUOTA = 200_000
SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\nresult_expires = 900\n'
know("of long answers", lengthy.SECRET)


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    port, limits = free_port(), {"result_limit": LIMIT, "result_limits": {"tab*": 30_000}}
    command = [sys.executable, lengthy.__file__, "--http", str(port)]
    with ExitStack() as stack:
        stack.enter_context(listening(command, port, tmp_path_factory.mktemp("server")))
        servers = {
            "stdio": {**warm_command(lengthy.__file__), **limits},
            "http": {"url": f"http://127.0.0.1:{port}/mcp", **limits},
            "usual": warm_command(lengthy.__file__),
        }
        yield start_worker(servers, settings=SHORT_LEASE, environment={"TARSY_LARGE_RESULT_BYTES": str(QUOTA)})


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=30, agent_id="reader")


@pytest.fixture
def client(redis_url: str, worker: Worker) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


def key_of(handle: str, agent_id: str = "reader") -> str:
    return keys.large_result_key(keys.result_owner("", agent_id), handle)


def handle_of(result: ToolResult) -> str:
    assert result.large is not None
    return result.large.handle


def read_all(tools: ToolExecutor, handle: str, limit: int = 50_000) -> str:
    parts = [tools.read_result(handle, 0, limit)]
    while (offset := parts[-1].next_offset) is not None:
        parts.append(tools.read_result(handle, offset, limit))
    return "".join(part.text for part in parts)


@pytest.mark.parametrize("server", ["stdio", "http"])
def test_the_whole_is_read_in_parts(tools: ToolExecutor, client: Any, server: str) -> None:
    result = tools.execute(f"{server}.report", {"lines": LINES})
    assert result.outcome is Outcome.OK
    assert result.large is not None
    assert len(result.content) <= LIMIT
    assert "\n0000000 the quick" in result.content
    assert result.content.endswith(f"{LINES - 1:07} the quick brown fox jumps over the lazy dog")
    assert "are left out here]" in result.content
    assert result.large.handle in result.content.partition("\n")[0], "a model learns how to read on"
    whole = read_all(tools, result.large.handle)
    lines = whole.split("\n")
    assert (len(whole), len(lines)) == (result.large.content_chars, LINES)
    assert lines[LINES - 1].startswith(f"{LINES - 1:07}")
    assert lengthy.SECRET not in whole
    assert "needle password: " in whole
    key = key_of(result.large.handle)
    assert 0 < client.ttl(key) <= 900
    assert 0 < client.ttl(keys.large_index_key(keys.result_owner("", "reader"))) <= 900
    assert client.strlen(key) < len(whole) // 3
    assert lengthy.SECRET not in "".join(unpack(client.get(key)))


def test_lines_are_found_by_what_they_contain(tools: ToolExecutor) -> None:
    handle = handle_of(tools.execute("stdio.report", {"lines": LINES}))
    found = tools.read_result(handle, contains="needle")
    assert (found.matches, found.next_offset) == (1, None)
    offset, _, line = found.text.partition(": ")
    assert line.startswith("needle password: ")
    assert tools.read_result(handle, int(offset), 6).text == "needle"
    assert tools.read_result(handle, contains="no such text").matches == 0
    some = tools.read_result(handle, 0, 200, contains="fox")
    assert some.next_offset is not None
    more = tools.read_result(handle, some.next_offset, 200, contains="fox")
    assert not {*some.text.split("\n")} & {*more.text.split("\n")}


def test_asyncio_agents_read_the_same(tools: ToolExecutor) -> None:
    async def read() -> str:
        async with AsyncToolExecutor(timeout_s=30, agent_id="reader") as found:
            result = await found.execute("stdio.report", {"lines": LINES})
            part = await found.read_result(handle_of(result), 10, 20)
            assert part.next_offset == 30
            return part.text

    handle = handle_of(tools.execute("stdio.report", {"lines": LINES}))
    assert asyncio.run(read()) == tools.read_result(handle, 10, 20).text


def test_a_long_structured_value_is_read_by_handle(tools: ToolExecutor) -> None:
    result = tools.execute("stdio.table", {"rows": 2000})
    assert result.large is not None
    assert result.structured is None
    assert len(result.content) <= 30_000
    found = tools.read_result(result.large.handle, 0, 1_000_000, part="structured")
    assert len(found.text) == result.large.structured_chars
    rows = json.loads(found.text)["result"]
    assert rows[1999] == {"number": 1999, "name": "row 1999"}


def test_what_is_short_enough_stays_whole(tools: ToolExecutor, client: Any) -> None:
    before = set(client.keys(f"{keys.LARGE_RESULTS}*"))
    for name, arguments in (("stdio.report", {"lines": 300}), ("usual.report", {"lines": 1000})):
        result = tools.execute(name, arguments)
        assert result.large is None
        assert result.content.count("\n") == arguments["lines"] - 1
    table = tools.execute("stdio.table", {"rows": 400})
    assert table.large is None, "by its own limit"
    assert set(client.keys(f"{keys.LARGE_RESULTS}*")) == before


def test_a_long_error_is_cut_as_well(tools: ToolExecutor) -> None:
    result = tools.execute("stdio.fail", {"words": 10_000})
    assert result.outcome is Outcome.TOOL_ERROR
    assert len(result.content) <= LIMIT
    assert read_all(tools, handle_of(result)) == "wrong " * 10_000


def test_other_producers_get_the_whole(tools: ToolExecutor) -> None:
    found = tool_signature("stdio.report", {"lines": LINES}).delay().get(timeout=30)
    assert found["content"].count("\n") == LINES - 1
    assert "large" not in found


def test_the_stock_door_keeps_it_too(tools: ToolExecutor, client: Any, worker: Worker) -> None:
    signature = tool_signature("stdio.report", {"lines": LINES}, agent_id="reader")
    *arguments, info = signature.args
    delayed = signature.clone()
    delayed.args = (*arguments, {**info, "reads_results": True})
    found = ToolResult.model_validate(delayed.apply_async(countdown=0.5).get(timeout=30))
    assert len(read_all(tools, handle_of(found))) == found.large.content_chars  # pyright: ignore[reportOptionalMemberAccess]


def test_the_audit_has_handle_and_sizes(tools: ToolExecutor, client: Any) -> None:
    pending = tools.submit("stdio.report", {"lines": LINES})
    large = pending.result().large
    assert large is not None
    assert only_entry(client, pending.id).large == large
    assert large.kept_bytes == client.strlen(key_of(pending.id))
    short = tools.submit("stdio.report", {"lines": 3})
    assert short.result().large is None
    assert only_entry(client, short.id).large is None


def test_a_cancelled_read_leaves_nothing_behind(tools: ToolExecutor, client: Any) -> None:
    handle = handle_of(tools.execute("stdio.report", {"lines": LINES}))

    async def read() -> None:
        async with AsyncToolExecutor(timeout_s=30, agent_id="reader") as found:
            client.client_pause(1000)  # Redis answers nobody meanwhile
            task = asyncio.create_task(found.execute("tarsy.read_result", {"handle": handle}))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await found.execute("nowhere.act")  # the audit of this process has written all that came before

    asyncio.run(read())
    wait_until(lambda: read_audit(client, AuditFilter(server="nowhere")).entries, "the next entry of this agent")
    assert read_audit(client, AuditFilter(server="tarsy")).entries == []
    assert not {*client.keys(keys.withdrawn_key("*")), *client.keys(keys.cancelled_key("*"))}


def test_a_handle_of_another_agent_is_refused(tools: ToolExecutor) -> None:
    handle = handle_of(tools.execute("stdio.report", {"lines": LINES}))
    for other in (ToolExecutor(agent_id="other", timeout_s=30), ToolExecutor(timeout_s=30)):
        with pytest.raises(ResultNotFound, match=handle):
            other.read_result(handle)
        answer = other.execute("tarsy.read_result", {"handle": handle})
        assert answer.error_code is ErrorCode.RESULT_NOT_FOUND


@pytest.mark.parametrize("handle", ["", "../x", "a:b", "x" * 100, "*", "\ud800"])
def test_bad_handles_are_refused(tools: ToolExecutor, handle: str) -> None:
    with pytest.raises(ResultNotFound):
        tools.read_result(handle)


def test_impossible_requests_are_errors(tools: ToolExecutor) -> None:
    bad: list[dict[str, Any]] = [
        {"offset": -1},
        {"limit": 0},
        {"limit": True},
        {"offset": 1.5},
        {"contains": ""},
        {"part": "attachments"},
    ]
    for each in bad:
        with pytest.raises(ValueError, match=next(iter(each))):
            tools.read_result("x", **each)


def test_an_expired_handle_says_so(tools: ToolExecutor, client: Any) -> None:
    handle = handle_of(tools.execute("stdio.report", {"lines": LINES}))
    client.pexpire(key_of(handle), 1)
    wait_until(lambda: not client.exists(key_of(handle)), "it has expired")
    with pytest.raises(ResultNotFound, match="no longer kept"):
        tools.read_result(handle)


def test_what_is_damaged_is_not_read(tools: ToolExecutor, client: Any) -> None:
    handle = handle_of(tools.execute("stdio.report", {"lines": LINES}))
    bomb = zlib.compress(b"0" * 50_000_000)
    good = client.get(key_of(handle))
    for damaged in (
        b"nonsense",
        b"{}\n",
        b'{"v": 1, "content": -1, "structured": 0}\n',
        b'{"v": 1, "content": 99999999999, "structured": 0}\n',
        b'{"v": 1, "content": 10, "structured": 0}\n' + bomb,
        b'{"v": 1, "content": 10, "structured": 0}\n' + bomb[:100],
        good[:-20],
        good + b"more",
        b"[" * 100_000,
    ):
        client.set(key_of(handle), damaged, ex=60)
        with pytest.raises(ResultNotFound, match="is not a large result"):
            tools.read_result(handle)


def test_over_the_quota_the_oldest_go(tools: ToolExecutor, client: Any, worker: Worker) -> None:
    owner = keys.result_owner("", "collector")
    collector = ToolExecutor(timeout_s=30, agent_id="collector")
    handles = [handle_of(collector.execute("stdio.report", {"lines": 20_000})) for _ in range(6)]
    kept = [handle for handle in handles if client.exists(key_of(handle, "collector"))]
    sizes = [client.strlen(key_of(handle, "collector")) for handle in kept]
    assert 0 < len(kept) < len(handles)
    assert kept == handles[-len(kept) :], "the newest"
    assert QUOTA - sizes[0] < sum(sizes) <= QUOTA
    assert client.zcard(keys.large_index_key(owner)) == len(kept)
    too_large = collector.execute("usual.report", {"lines": 75_000})
    assert too_large.large is not None
    assert not too_large.large.handle
    assert "larger than what is kept" in too_large.content


def test_a_full_redis_does_not_take_the_answer_away(
    tools: ToolExecutor, client: Any, worker: Worker, tmp_path: Path
) -> None:
    began, go_on = tmp_path / "began", make_gate(tmp_path / "go on")
    pending = tools.submit("stdio.report", {"lines": LINES, "began": str(began), "wait_for": str(go_on)})
    wait_until(began.exists, "the tool runs")
    client.config_set("maxmemory", 1)
    try:
        open_gate(go_on)
        result = pending.result()
    finally:
        client.config_set("maxmemory", 0)
    assert result.outcome is Outcome.OK
    assert result.large is not None
    assert not result.large.handle
    assert result.large.content_chars > len(result.content)
    assert "Redis did not take it" in result.content
    assert not client.exists(key_of(pending.id))
    worker.wait_for_log("Redis does not keep the large result")


@pytest.mark.parametrize("name", ["tarsy.read_result", "tarsy__read_result", "mcp_tarsy_read_result"])
def test_a_model_reads_on_without_a_worker(tools: ToolExecutor, name: str) -> None:
    handle = handle_of(tools.execute("stdio.report", {"lines": LINES}))
    answer = tools.execute(name, f"handle: {handle}, offset: 0, limit: 7")
    assert (answer.outcome, answer.server, answer.tool) == (Outcome.OK, "tarsy", "read_result")
    assert answer.content.endswith("go on with offset 7]\n0000000")
    found = tools.submit(name, {"handle": handle, "contains": "needle"}).result()
    assert found.content.startswith("[1 lines from character 0 on")
    [wrong] = tools.execute_many([(name, {"handle": handle, "limit": 10**9})])
    assert wrong.error_code is ErrorCode.INVALID_ARGUMENTS
    assert tools.can_execute(name)


def test_the_tool_is_listed_once_a_result_was_cut(worker: Worker) -> None:
    def listed(tools: ToolExecutor) -> bool:
        return "tarsy.read_result" in {tool.name for tool in tools.list_tools()}

    usual = ToolExecutor(["stdio"], timeout_s=30)
    assert not listed(usual)
    usual.execute("stdio.report", {"lines": LINES})
    assert listed(usual)
    assert "tarsy.read_result" in usual.prompt_section()
    assert listed(ToolExecutor(["stdio"], timeout_s=30, offer_read_result=True))
    never = ToolExecutor(["stdio"], timeout_s=30, offer_read_result=False)
    never.execute("stdio.report", {"lines": LINES})
    assert not listed(never)


def test_a_toolbox_offers_the_tool_from_then_on(worker: Worker) -> None:
    box = anthropic_tools(ToolExecutor(["stdio"], timeout_s=30))
    asked: dict[str, Any] = {"type": "tool_use", "id": "1", "name": "stdio__report", "input": {"lines": LINES}}
    count = len(box)
    for _ in range(2):
        box.run([asked])
        assert [tool["name"] for tool in box[count:]] == ["tarsy__read_result"]


def test_the_command_reads_a_part(tools: ToolExecutor, worker: Worker) -> None:
    handle = handle_of(tools.execute("stdio.report", {"lines": LINES}))
    words = ("results", "read", handle, "--agent", "reader")
    done = run_command(*words, "--contains", "needle", environment=worker.environment)
    assert done.returncode == 0, done.stderr
    assert "needle password: " in done.stdout
    done = run_command(*words, "--offset", "3", "--limit", "4", "--json", environment=worker.environment)
    assert json.loads(done.stdout) | {"text": "0000"} == json.loads(done.stdout)
    done = run_command("results", "read", handle, environment=worker.environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--agent" in done.stderr


def test_after_a_killed_worker_the_whole_can_be_read(
    tools: ToolExecutor, start_worker: StartWorker, worker: Worker, tmp_path: Path
) -> None:
    began, go_on = tmp_path / "began", make_gate(tmp_path / "go on")
    mortal = {"mortal": warm_command(lengthy.__file__)}
    first = start_worker(mortal, settings=SHORT_LEASE)
    with environment_of(first):
        agent = ToolExecutor(["mortal"], timeout_s=50, agent_id="reader")
    pending = agent.submit("mortal.report", {"lines": LINES, "began": str(began), "wait_for": str(go_on)})
    wait_until(began.exists, "the tool runs")
    first.process.kill()
    start_worker(mortal, settings=SHORT_LEASE)
    open_gate(go_on)
    result = pending.result()
    assert result.outcome is Outcome.OK
    assert read_all(agent, handle_of(result)).count("\n") == LINES - 1

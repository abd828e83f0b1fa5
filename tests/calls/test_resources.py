"""Listing and reading resources: calls like those of tools, with all that belongs to a call."""

import asyncio
import base64
import json
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import (
    AsyncToolExecutor,
    Attachment,
    ErrorCode,
    Outcome,
    OutcomeError,
    ResourceDefinition,
    ResourceTemplate,
    ToolExecutor,
)
from tarsy_tasks.celery_app import agent_app
from tarsy_tasks.telemetry.audit import AuditFilter, read_audit
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, free_port, wait_until
from tests.servers import library
from tests.warm_start import warm_command

POLICY = {"servers": {"desk": {"deny": ["resources/templates/list"]}}}


def serve(*options: str) -> dict[str, Any]:
    return warm_command(library.__file__, *options)


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Worker:
    policy = tmp_path_factory.mktemp("policy") / "policy.json"
    policy.write_text(json.dumps(POLICY))
    servers = {
        "desk": DEMO_SERVER,
        "library": serve(),
        "tools-only": serve("--tools-only"),
        "endless": serve("--endless"),
        "huge": serve("--huge"),
    }
    environment = {"TARSY_POLICY": str(policy), "TARSY_METRICS_PORT": str(metrics_port)}
    return start_worker(servers, environment=environment)


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=20, agent_id="reader")


def test_resources_of_all_pages_are_listed(tools: ToolExecutor) -> None:
    listed = tools.list_resources("library")
    assert len(listed) == library.PAGES * library.PER_PAGE
    assert listed[0] == ResourceDefinition(
        server="library",
        uri="book://0-0",
        name="book 0-0",
        title="A book",
        mime_type="text/plain",
        size_bytes=7,
        annotations={"audience": ["user"], "priority": 0.5},
    )


def test_templates_are_listed(tools: ToolExecutor) -> None:
    [template] = tools.list_resource_templates("library")
    assert (template.uri_template, template.server) == ("book://{shelf}/{title}", "library")


def test_a_text_is_read(tools: ToolExecutor) -> None:
    result = tools.read_resource("desk://opening-hours", server="desk")
    assert (result.outcome, result.content, result.tool, result.attempts) == (
        *(Outcome.OK, "Monday to Friday, 9 am to 5 pm"),
        *("resources/read", 1),
    )
    [contents] = result.contents
    assert (contents.uri, contents.text, contents.data) == ("desk://opening-hours", result.content, None)
    assert contents.size_bytes == len(result.content)


def test_a_blob_is_read(tools: ToolExecutor) -> None:
    [stamp] = [each for each in tools.list_resources("desk") if each.uri == "desk://stamp"]
    result = tools.read_resource(stamp)
    assert result.content == "[image/png, 70 B, desk://stamp]"
    [contents] = result.contents
    assert (contents.text, contents.mime_type) == (None, "image/png")
    assert contents.read_bytes().startswith(b"\x89PNG")


def test_a_resource_of_several_parts_is_read(tools: ToolExecutor) -> None:
    result = tools.read_resource("book://parts", server="library")
    assert [each.text for each in result.contents] == ["one", "two", None]
    assert [each.uri for each in result.contents] == ["book://parts/1", "book://parts/2", "book://parts/3"]
    assert result.content.splitlines()[:2] == ["one", "two"]


def test_a_template_is_read_with_values(tools: ToolExecutor) -> None:
    [template] = tools.list_resource_templates("library")
    result = tools.read_resource(template, values={"shelf": "a b", "title": "x/y"})
    assert result.content == "book://a%20b/x%2Fy"


def test_secrets_in_texts_and_blobs_are_masked(tools: ToolExecutor) -> None:
    text = tools.read_resource("book://secret", server="library")
    assert text.content == "password: __MASKED__"
    blob = tools.read_resource("book://secret-blob", server="library")
    [contents] = blob.contents
    assert b"hunter2" not in base64.b64decode(contents.data or "")
    assert contents.data is None or b"__MASKED__" in contents.read_bytes()


def test_a_resource_that_is_not_there_is_an_error_of_the_server(tools: ToolExecutor) -> None:
    result = tools.read_resource("kitchen://sink", server="library")
    assert (result.outcome, result.error_code, result.contents) == (Outcome.TOOL_ERROR, ErrorCode.SERVER_ERROR, ())
    assert "kitchen://sink" in result.content


def test_a_server_without_resources_has_none(tools: ToolExecutor) -> None:
    assert tools.list_resources("tools-only") == ()
    result = tools.read_resource("book://0-0", server="tools-only")
    assert result.error_code is ErrorCode.SERVER_ERROR


def test_a_server_has_to_be_named_if_there_are_several(tools: ToolExecutor) -> None:
    with pytest.raises(ValueError, match="give the `server`"):
        tools.read_resource("desk://opening-hours")
    assert ToolExecutor(["desk"]).read_resource("desk://opening-hours").outcome is Outcome.OK
    with pytest.raises(ValueError, match="has no URI"):
        tools.read_resource(Attachment(type="image"), server="desk")
    with pytest.raises(ValueError, match="give `values`"):
        tools.read_resource(ResourceTemplate(server="desk", uri_template="desk://items/{item}"))


def test_a_server_that_is_not_selected_is_refused(tools: ToolExecutor) -> None:
    result = tools.read_resource("desk://opening-hours", server="cellar")
    assert (result.error_code, result.attempts) == (ErrorCode.UNKNOWN_SERVER, 0)
    with pytest.raises(OutcomeError, match="no MCP server `cellar`"):
        tools.list_resources("cellar")


def test_asyncio_agents_read_too(worker: Worker) -> None:
    async def run() -> None:
        async with AsyncToolExecutor(timeout_s=20) as tools:
            assert [each.uri for each in await tools.list_resources("desk")] == ["desk://opening-hours", "desk://stamp"]
            assert len(await tools.list_resource_templates("library")) == 1
            read = await tools.read_resource("desk://items/{item}", server="desk", values={"item": "lamp"})
            assert json.loads(read.content)["item"] == "lamp"

    asyncio.run(run())


def test_the_policy_decides_by_the_method(tools: ToolExecutor) -> None:
    with pytest.raises(OutcomeError, match="NOT_PERMITTED"):
        tools.list_resource_templates("desk")
    tools.list_tools()
    assert tools.can_execute("desk.resources/read")
    assert not tools.can_execute("desk.resources_read")


def test_the_audit_names_the_operation(tools: ToolExecutor, redis_url: str) -> None:
    result = tools.read_resource("desk://opening-hours", server="desk")
    client = redis.Redis.from_url(redis_url)
    [entry] = read_audit(client, AuditFilter(task_id=result.task_id)).entries
    assert (entry.operation, entry.name) == ("resources/read", "desk.resources/read")
    assert (entry.arguments, entry.agent_id) == ('{"uri":"desk://opening-hours"}', "reader")
    assert read_audit(client, AuditFilter(operation="resources/read", server="desk")).entries
    called = tools.execute("desk.echo", {"text": "x"})
    [entry] = read_audit(client, AuditFilter(task_id=called.task_id)).entries
    assert entry.operation == "tool_call"


def test_the_metrics_name_the_operation(tools: ToolExecutor, metrics_port: int) -> None:
    tools.read_resource("desk://opening-hours", server="desk")

    def is_counted() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
            return b'tool="resources/read"' in answer.read()

    wait_until(is_counted, "the metrics have the read")


def test_any_producer_may_ask(worker: Worker) -> None:
    app = agent_app()
    sent = app.send_task("tarsy.request", ["desk", "resources/read", {"uri": "desk://opening-hours"}])
    assert sent.get(timeout=20)["content"] == "Monday to Friday, 9 am to 5 pm"
    odd = app.send_task("tarsy.request", ["desk", "tools/call", {}]).get(timeout=20)
    assert odd["error_code"] == "INVALID_MESSAGE"
    assert "resources/read" in odd["content"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (None, "uri: Field required"),
        ({"uri": ""}, "uri: String should have at least 1 character"),
        ({"uri": "book://x", "page": 2}, "page: Extra inputs"),
        ({"uri": 7}, "uri: Input should be a valid string"),
        ("{", "not JSON"),
        ([1], "should be a valid dictionary"),
        ({"uri": "b" * 9000}, "uri: String should have at most"),
        ({"uri": "book://{x", "values": {"x": "1"}}, "not a URI template"),
        ({"uri": "book://{x}", "values": {}}, "`x` is missing"),
        ({"uri": "book://{x}", "values": {"x": "1", "y": "2"}}, "no variable `y`"),
        ({"uri": "book://x", "values": {"x": ["1"] * 10_000}}, "more than 10000 values"),
        ({"uri": "https://shop.example{+path}", "values": {"path": ".elsewhere.example/"}}, "another origin"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_bad_arguments_are_refused_and_nothing_is_sent(worker: Worker, arguments: object, why: str) -> None:
    result = agent_app().send_task("tarsy.request", ["library", "resources/read", arguments]).get(timeout=20)
    assert (result["error_code"], result["attempts"]) == ("INVALID_ARGUMENTS", 0)
    assert why in result["content"]


def test_an_endless_list_ends_with_an_error(tools: ToolExecutor) -> None:
    with pytest.raises(OutcomeError, match="endless resources/list") as caught:
        tools.list_resources("endless")
    assert caught.value.result.error_code is ErrorCode.INVALID_RESULT


def test_a_resource_of_200_mb_is_refused_with_the_limit(tools: ToolExecutor) -> None:
    result = tools.read_resource("book://0-0", server="huge")
    assert result.error_code is ErrorCode.RESULT_TOO_LARGE
    assert "16777216 bytes" in result.content
    assert tools.list_resource_templates("huge"), "the session goes on"


def test_a_blob_that_is_too_large_is_left_out(tools: ToolExecutor) -> None:
    result = tools.read_resource("book://large", server="library")
    [contents] = result.contents
    assert (contents.size_bytes, contents.data, contents.text) == (5_000_000, None, None)
    with pytest.raises(ValueError, match="left out"):
        contents.read_bytes()


def test_a_tool_for_an_app_only_is_not_listed(tools: ToolExecutor) -> None:
    assert [each.name for each in tools.list_tools() if each.server == "library"] == ["library.echo"]
    assert tools.execute("library.turn_page", {"text": "2"}).content == "2"


def test_errors_say_nothing_of_tools(
    tools: ToolExecutor, tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"unserved": DEMO_SERVER}}))
    with monkeypatch.context() as patch:
        patch.setenv("TARSY_MCP_CONFIG", str(tmp_path / "mcp.json"))
        late = ToolExecutor(timeout_s=1).read_resource("desk://stamp")
    assert late.error_code is ErrorCode.NO_WORKER
    with pytest.raises(OutcomeError) as caught:
        tools.list_resource_templates("desk")
    for result in (late, caught.value.result):
        assert "tool" not in result.content
    assert "nothing was read" in late.content


def test_the_command_line_says_what_servers_offer(worker: Worker) -> None:
    run_cli = partial(run_command, environment=worker.environment_of("agent"))

    def offered() -> dict[str, Any]:
        return {each["server"]: each["capabilities"] for each in json.loads(run_cli("servers", "--json").stdout)}

    known = wait_until(lambda: (found := offered())["tools-only"] and found["library"] and found, "it is reported")
    assert known["tools-only"] == ["tools"]
    assert known["library"] == ["completions", "prompts", "resources", "tools"]
    listed = run_cli("resources", "list", "tools-only", "library")
    assert listed.returncode == 0, listed.stderr
    assert "tools-only: it says that it has no resources" in listed.stderr
    assert "library: it says" not in listed.stderr


def test_the_command_line_lists_and_reads(worker: Worker, tmp_path: Path) -> None:
    run_cli = partial(run_command, environment=worker.environment_of("agent"))
    listed = run_cli("resources", "list", "desk", "--json")
    assert listed.returncode == 3, listed.stderr  # the policy denies its templates
    listed = run_cli("resources", "list", "library", "--json")
    assert listed.returncode == 0, listed.stderr
    assert len(json.loads(listed.stdout)["resources"]) == library.PAGES * library.PER_PAGE
    read = run_cli("read", "desk://opening-hours", "--server", "desk")
    assert (read.returncode, read.stdout) == (0, "Monday to Friday, 9 am to 5 pm\n")
    kept = run_cli("read", "desk://stamp", "--server", "desk", "--output", str(tmp_path / "stamp.png"))
    assert kept.returncode == 0, kept.stderr
    assert (tmp_path / "stamp.png").read_bytes().startswith(b"\x89PNG")
    item = run_cli("read", "desk://items/{item}", "--server", "desk", "--value", "item=lamp")
    assert json.loads(item.stdout)["item"] == "lamp"
    assert run_cli("read", "desk://opening-hours").returncode == 2
    assert run_cli("read", "desk://nothing", "--server", "desk").returncode == 1

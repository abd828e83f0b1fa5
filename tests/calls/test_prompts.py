"""Prompts, and completing arguments: calls like those of tools."""

import asyncio
import json

import pytest
import redis

from tarsy_tasks import AsyncToolExecutor, Completion, ErrorCode, OutcomeError, PromptDefinition, ToolExecutor
from tarsy_tasks.celery_app import agent_app
from tarsy_tasks.telemetry.audit import AuditFilter, read_audit
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker
from tests.servers import library
from tests.warm_start import warm_command


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker) -> Worker:
    servers = {
        "desk": DEMO_SERVER,
        "library": warm_command(library.__file__),
        "tools-only": warm_command(library.__file__, "--tools-only"),
    }
    return start_worker(servers)


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=20)


@pytest.fixture(scope="module")
def summary(tools: ToolExecutor) -> PromptDefinition:
    [found] = tools.list_prompts("library")
    return found


def test_prompts_are_listed_masked(summary: PromptDefinition) -> None:
    assert (summary.server, summary.name, summary.title) == ("library", "summary", "Summary")
    [argument] = summary.arguments
    assert (argument.name, argument.required, argument.description) == ("topic", True, "password: __MASKED__")


def test_a_prompt_is_messages_for_the_model(tools: ToolExecutor) -> None:
    result = tools.get_prompt("library", "summary", {"topic": "lamps"})
    assert result.description == "password: __MASKED__"
    said, image, link = result.messages
    assert (said.role, said.content, said.attachments) == ("user", "About lamps. password: __MASKED__", ())
    assert image.attachments[0].mime_type == "image/png"
    assert (link.role, link.attachments[0].uri) == ("assistant", "book://0-0")
    assert result.content.startswith("user: About lamps.")
    assert tools.read_resource(link.attachments[0], server=result.server).content == "book://0-0"


def test_a_prompt_that_is_too_large_is_refused(tools: ToolExecutor) -> None:
    result = tools.get_prompt("library", "summary", {"topic": "everything"})
    assert (result.error_code, result.messages, result.description) == (ErrorCode.RESULT_TOO_LARGE, (), "")
    assert "1048576 characters" in result.content


def test_a_server_without_prompts_has_none(tools: ToolExecutor) -> None:
    assert tools.list_prompts("tools-only") == ()


def test_arguments_are_completed(tools: ToolExecutor, summary: PromptDefinition) -> None:
    found = tools.complete(summary, "topic", "la")
    assert (len(found.values), found.values[0], found.total, found.has_more) == (100, "la0", 150, True)
    [template] = tools.list_resource_templates("desk")
    known = Completion(values=("lamp", "lampshade"))
    assert tools.complete(template, "item", "lam", context={"tone": "formal"}) == known
    with pytest.raises(OutcomeError, match="SERVER_ERROR"):
        tools.complete(summary.model_copy(update={"server": "tools-only"}), "topic")


def test_asyncio_agents_get_prompts_too(worker: Worker) -> None:
    async def run() -> None:
        async with AsyncToolExecutor(timeout_s=20) as tools:
            [offer] = await tools.list_prompts("desk")
            assert (await tools.complete(offer, "tone", "fo")).values == ("formal",)
            result = await tools.get_prompt("desk", "offer", {"item": "lamp", "tone": "formal"})
            assert result.messages[0].content == "Write a formal offer for: lamp"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "arguments", "why"),
    [
        ("prompts/get", {}, "name: Field required"),
        ("prompts/get", {"name": "summary", "arguments": {"topic": 7}}, "arguments.topic: Input should be"),
        ("prompts/list", {"page": 1}, "page: Extra inputs"),
        ("completion/complete", {"argument": "topic"}, "either `prompt` or `uri_template`"),
        ("completion/complete", {"prompt": "a", "uri_template": "b", "argument": "topic"}, "either `prompt` or"),
    ],
    ids=str,
)
def test_bad_arguments_of_prompts_are_refused(worker: Worker, method: str, arguments: object, why: str) -> None:
    result = agent_app().send_task("tarsy.request", ["library", method, arguments]).get(timeout=20)
    assert (result["error_code"], result["attempts"]) == ("INVALID_ARGUMENTS", 0)
    assert why in result["content"]


def test_the_audit_has_prompts_and_completions(tools: ToolExecutor, summary: PromptDefinition, redis_url: str) -> None:
    tools.complete(summary, "topic", "la")
    tools.get_prompt("library", "summary", {"topic": "password: hunter2hunter2"})
    client = redis.Redis.from_url(redis_url)
    for operation in ("prompts/get", "completion/complete", "prompts/list"):
        assert read_audit(client, AuditFilter(operation=operation, server="library")).entries
    [entry, *_] = read_audit(client, AuditFilter(operation="prompts/get", server="library")).entries
    assert "hunter2" not in entry.arguments


def test_the_command_line_lists_and_gets_prompts(worker: Worker) -> None:
    environment = worker.environment_of("agent")
    listed = run_command("prompts", "list", "--json", environment=environment)
    assert [each["name"] for each in json.loads(listed.stdout)["prompts"]] == ["offer", "summary"]
    got = run_command("prompts", "get", "desk", "offer", "item=lamp", environment=environment)
    assert (got.returncode, got.stdout) == (0, "user: Write a friendly offer for: lamp\nassistant: For how many?\n")
    assert run_command("prompts", "get", "desk", "offer", "lamp", environment=environment).returncode == 2
    assert run_command("prompts", "get", "desk", "nothing", environment=environment).returncode == 1

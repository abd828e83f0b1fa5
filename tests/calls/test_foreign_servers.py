"""Servers that we did not write, over real workers: server-everything, server-filesystem and server-memory from npm."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks import AsyncToolExecutor, Outcome, ToolCall, ToolDefinition, ToolExecutor, ToolResult
from tests.conftest import StartWorker
from tests.npm import npm_server
from tests.processes import Worker, free_port, listening

pytestmark = pytest.mark.timeout(300)  # the first run installs the servers

EVERYTHING = ("everything", "everything-http")


@pytest.fixture(scope="module")
def everything_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    command = [*npm_server("server-everything"), "streamableHttp"]
    with listening(command, port, tmp_path_factory.mktemp("everything"), {"PORT": str(port)}):
        yield port


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The only directory that the filesystem server may touch."""
    return tmp_path_factory.mktemp("allowed")


@pytest.fixture(scope="module", autouse=True)
def worker(
    start_worker: StartWorker, everything_port: int, allowed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Worker:
    def server(package: str, *arguments: str, **options: Any) -> dict[str, Any]:
        command, *rest = npm_server(package)
        return {"command": command, "args": [*rest, *arguments], **options}

    memory = tmp_path_factory.mktemp("memory") / "graph.jsonl"
    return start_worker(
        {
            "everything": server("server-everything", "stdio"),
            "everything-http": {"url": f"http://127.0.0.1:{everything_port}/mcp"},
            "files": server("server-filesystem", str(allowed)),
            "memory": server("server-memory", env={"MEMORY_FILE_PATH": str(memory)}),
        }
    )


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=60)


def _call(tools: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    return tools.execute(ToolCall(id="c", name=name, arguments=arguments))


def _definition(tools: ToolExecutor, name: str) -> ToolDefinition:
    return next(tool for tool in tools.list_tools() if tool.name == name)


def test_all_of_them_list_their_tools(tools: ToolExecutor) -> None:
    names = {tool.name for tool in tools.list_tools()}
    assert tools.failed_servers() == {}
    assert {"files.write_file", "memory.create_entities"} <= names
    assert {f"{server}.echo" for server in EVERYTHING} <= names


@pytest.mark.parametrize("server", EVERYTHING)
def test_everything_echoes(tools: ToolExecutor, server: str) -> None:
    assert _call(tools, f"{server}.echo", message="hällo").content == "Echo: hällo"


@pytest.mark.parametrize("server", EVERYTHING)
def test_everything_adds(tools: ToolExecutor, server: str) -> None:
    assert _call(tools, f"{server}.get-sum", a=2, b=40).content == "The sum of 2 and 40 is 42."


@pytest.mark.parametrize("server", EVERYTHING)
def test_everything_sends_an_image_between_two_texts(tools: ToolExecutor, server: str) -> None:
    result = _call(tools, f"{server}.get-tiny-image")
    first, named, last = result.content.splitlines()
    assert (first, last) == ("Here's the image you requested:", "The image above is the MCP logo.")
    assert named.startswith("[image/png, ")
    [image] = result.attachments
    assert image.data is not None
    assert base64.b64decode(image.data).startswith(b"\x89PNG")


@pytest.mark.parametrize("server", EVERYTHING)
def test_everything_answers_with_structured_content(tools: ToolExecutor, server: str) -> None:
    result = _call(tools, f"{server}.get-structured-content", location="Chicago")
    assert isinstance(result.structured, dict)
    assert result.structured.keys() == {"temperature", "conditions", "humidity"}


@pytest.mark.parametrize("server", EVERYTHING)
def test_everything_marks_a_message_and_adds_an_image(tools: ToolExecutor, server: str) -> None:
    result = _call(tools, f"{server}.get-annotated-message", messageType="error", includeImage=True)
    assert result.outcome is Outcome.OK
    assert result.content.startswith("Error: Operation failed\n[image/png")


@pytest.mark.parametrize("server", EVERYTHING)
def test_everything_links_resources(tools: ToolExecutor, server: str) -> None:
    result = _call(tools, f"{server}.get-resource-links", count=2)
    links = [attachment for attachment in result.attachments if attachment.type == "resource_link"]
    assert len(links) == 2
    assert all(link.uri in result.content for link in links if link.uri)


@pytest.mark.parametrize("server", EVERYTHING)
def test_everything_embeds_a_resource(tools: ToolExecutor, server: str) -> None:
    result = _call(tools, f"{server}.get-resource-reference", resourceType="Text", resourceId=1)
    [resource] = result.attachments
    assert resource.text is not None
    assert resource.text in result.content


@pytest.mark.parametrize("server", EVERYTHING)
def test_everything_works_for_long_while_others_are_served(tools: ToolExecutor, server: str) -> None:
    slow = tools.submit(
        ToolCall(id="s", name=f"{server}.trigger-long-running-operation", arguments={"duration": 4, "steps": 4})
    )
    assert _call(tools, f"{server}.echo", message="meanwhile").content == "Echo: meanwhile"
    assert not slow.done()
    assert slow.result().content == "Long running operation completed. Duration: 4 seconds, Steps: 4."


@pytest.mark.parametrize("server", EVERYTHING)
def test_a_value_that_everything_does_not_know_is_rejected(tools: ToolExecutor, server: str) -> None:
    assert _call(tools, f"{server}.get-structured-content", location="Atlantis").outcome is Outcome.REJECTED


@pytest.mark.parametrize("server", EVERYTHING)
def test_everything_answers_32_calls_at_once_in_their_order(tools: ToolExecutor, server: str) -> None:
    async def ask() -> list[ToolResult]:
        async with AsyncToolExecutor(timeout_s=60) as executor:
            return await executor.execute_many(
                ToolCall(id=str(number), name=f"{server}.echo", arguments={"message": str(number)})
                for number in range(32)
            )

    assert [result.content for result in asyncio.run(ask())] == [f"Echo: {number}" for number in range(32)]


@pytest.mark.parametrize("server", EVERYTHING)
def test_hints_of_a_tool_reach_the_agent(tools: ToolExecutor, server: str) -> None:
    assert _definition(tools, f"{server}.echo").annotations["readOnlyHint"] is True


def test_the_broker_is_not_in_the_environment_of_a_server(tools: ToolExecutor, redis_url: str) -> None:
    assert redis_url not in _call(tools, "everything.get-env").content


def test_a_file_is_written_listed_and_read(tools: ToolExecutor, allowed: Path) -> None:
    path = allowed / "note.txt"
    written = _call(tools, "files.write_file", path=str(path), content="three apples\n")
    assert written.outcome is Outcome.OK, written.content
    assert path.read_text() == "three apples\n"
    assert "[FILE] note.txt" in _call(tools, "files.list_directory", path=str(allowed)).content
    assert _call(tools, "files.read_text_file", path=str(path)).content == "three apples\n"


def test_the_server_refuses_a_path_outside_the_allowed_directory(tools: ToolExecutor, tmp_path: Path) -> None:
    outside = tmp_path / "note.txt"
    result = _call(tools, "files.write_file", path=str(outside), content="three apples\n")
    assert result.outcome is Outcome.TOOL_ERROR
    assert "outside allowed directories" in result.content
    assert not outside.exists()


def test_entities_that_were_created_are_in_the_graph(tools: ToolExecutor) -> None:
    ada = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    engine = {"name": "Engine", "entityType": "machine", "observations": []}
    relation = {"from": "Ada", "to": "Engine", "relationType": "programs"}
    assert _call(tools, "memory.create_entities", entities=[ada, engine]).outcome is Outcome.OK
    assert _call(tools, "memory.create_relations", relations=[relation]).outcome is Outcome.OK
    graph = _call(tools, "memory.read_graph")
    assert graph.structured == {"entities": [ada, engine], "relations": [relation]}

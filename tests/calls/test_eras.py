"""One behaviour, whatever carries it: stdio, Streamable HTTP or SSE, in the 2026-07-28 era or in the handshake era."""

import asyncio
import hashlib
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tests.conftest import StartWorker
from tests.processes import Worker, free_port, is_alive, listening, read_command, wait_until
from tests.servers import either_era
from tests.warm_start import warm_command

CREDENTIALS = {"headers": {"X-Team": "${TEAM:-sre}"}, "auth": {"type": "bearer", "token": "${SESAME}"}}


@dataclass(frozen=True)
class Variant:
    """A transport in an era.

    Attributes:
        options: Of `either_era`, without the port.
        hears_cancel: Whether the SDK's server notices a cancel. Without a session it cannot tell whose it is, and while
            it prepares a JSON answer of the new era it does not look whether anybody still waits.
    """

    name: str
    protocol: str
    options: tuple[str, ...] = ()
    hears_cancel: bool = True

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    @property
    def listens(self) -> bool:
        return self.kind != "stdio"


NEW, OLD = "2026-07-28", "2025-11-25"
VARIANTS = [
    Variant("stdio-new", NEW),
    Variant("stdio-old", OLD, ("--handshake",)),
    Variant("http-new", NEW),
    Variant("http-new-json", NEW, ("--json",), hears_cancel=False),
    Variant("http-old", OLD, ("--handshake",)),
    Variant("http-old-json", OLD, ("--handshake", "--json")),
    Variant("http-old-stateless", OLD, ("--handshake", "--json", "--stateless"), hears_cancel=False),
    Variant("sse-new", NEW, ("--sse",)),
    Variant("sse-old", OLD, ("--handshake", "--sse")),
]
LISTENING = [variant for variant in VARIANTS if variant.listens]
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


class ListeningServers:
    """The servers that listen, each of which can be restarted on its port."""

    def __init__(self, directory: Path) -> None:
        self.ports = {variant.name: free_port() for variant in LISTENING}
        self._directory = directory
        self._stacks = {variant.name: ExitStack() for variant in LISTENING}

    def start(self, variant: Variant) -> None:
        port = self.ports[variant.name]
        command = [sys.executable, either_era.__file__, *variant.options, "--http", str(port)]
        self._stacks[variant.name].enter_context(listening(command, port, self._directory))

    def stop(self, variant: Variant) -> None:
        self._stacks[variant.name].close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListeningServers]:
    servers = ListeningServers(tmp_path_factory.mktemp("servers"))
    try:
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(servers.start, LISTENING))
        yield servers
    finally:
        for variant in LISTENING:
            servers.stop(variant)


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, servers: ListeningServers) -> Worker:
    def server(variant: Variant) -> dict[str, Any]:
        if variant.listens:
            path = "sse" if variant.kind == "sse" else "mcp"
            url = f"http://127.0.0.1:{servers.ports[variant.name]}/{path}"
            return {"type": variant.kind, "url": url, "timeouts": {"recreate_s": 3}, **CREDENTIALS}
        return warm_command(either_era.__file__, *variant.options)

    return start_worker({variant.name: server(variant) for variant in VARIANTS}, environment={"SESAME": "open-sesame"})


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    return ToolExecutor(timeout_s=30)


def _call(tools: ToolExecutor, variant: Variant, tool: str, **arguments: Any) -> ToolResult:
    return tools.execute(ToolCall(id="c", name=f"{variant.name}.{tool}", arguments=arguments))


@each_variant
def test_resources_are_listed_and_read(tools: ToolExecutor, variant: Variant) -> None:
    assert {each.uri for each in tools.list_resources(variant.name)} == {"desk://opening-hours", "desk://stamp"}
    [template] = tools.list_resource_templates(variant.name)
    assert '"lamp"' in tools.read_resource(template, values={"item": "lamp"}).content
    [stamp] = tools.read_resource("desk://stamp", server=variant.name).contents
    assert stamp.read_bytes().startswith(b"\x89PNG")
    unknown = tools.read_resource("desk://cellar", server=variant.name)
    assert (unknown.error_code, unknown.contents) == (ErrorCode.SERVER_ERROR, ())


@each_variant
def test_prompts_are_listed_and_completed(tools: ToolExecutor, variant: Variant) -> None:
    [offer] = tools.list_prompts(variant.name)
    assert [(each.name, each.required) for each in offer.arguments] == [("item", True), ("tone", False)]
    [lamp, _] = tools.complete(offer, "item", "lam").values
    assert [each.content for each in tools.get_prompt(variant.name, "offer", {"item": lamp}).messages] == [
        "Write a friendly offer for: lamp",
        "For how many?",
    ]
    assert tools.get_prompt(variant.name, "offers").error_code is ErrorCode.SERVER_ERROR


@each_variant
def test_the_worker_logs_the_protocol_version(worker: Worker, tools: ToolExecutor, variant: Variant) -> None:
    _call(tools, variant, "echo", text="connect")
    worker.wait_for_log(f"connected to MCP server {variant.name}: {variant.kind}, protocol {variant.protocol}")


@each_variant
def test_a_text_comes_back(tools: ToolExecutor, variant: Variant) -> None:
    result = _call(tools, variant, "echo", text="hällo\nworld")
    assert (result.outcome, result.content) == (Outcome.OK, "hällo\nworld")


@each_variant
def test_structured_content_comes_back(tools: ToolExecutor, variant: Variant) -> None:
    assert _call(tools, variant, "quote", item="lamp", count=2).structured == {"item": "lamp", "count": 2, "total": 9.0}


@each_variant
def test_an_image_comes_back_beside_its_text(tools: ToolExecutor, variant: Variant) -> None:
    result = _call(tools, variant, "label", item="lamp")
    assert result.content.startswith("label of lamp\n[image/png, ")
    assert [attachment.mime_type for attachment in result.attachments] == ["image/png"]


@each_variant
def test_a_failing_tool_is_data(tools: ToolExecutor, variant: Variant) -> None:
    result = _call(tools, variant, "order", item="unicorn", count=1)
    assert (result.outcome, result.error_code) == (Outcome.TOOL_ERROR, ErrorCode.TOOL_ERROR)
    assert "sold out" in result.content


@each_variant
def test_arguments_that_do_not_fit_are_rejected(tools: ToolExecutor, variant: Variant) -> None:
    result = _call(tools, variant, "order", item="lamp")
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.INVALID_ARGUMENTS)
    assert "count" in result.content


@each_variant
def test_a_tool_that_is_not_there_is_rejected(tools: ToolExecutor, variant: Variant) -> None:
    result = _call(tools, variant, "juggle")
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.UNKNOWN_TOOL)


@each_variant
def test_a_slow_call_does_not_delay_a_fast_one(tools: ToolExecutor, variant: Variant) -> None:
    slow = tools.submit(ToolCall(id="s", name=f"{variant.name}.wait", arguments={"seconds": 3}))
    assert _call(tools, variant, "echo", text="meanwhile").content == "meanwhile"
    assert not slow.done()
    assert slow.result().content == "done after 3 s"


@each_variant
def test_a_cancel_reaches_the_server_and_its_session_lives_on(tools: ToolExecutor, variant: Variant) -> None:
    key = uuid.uuid4().hex
    pending = tools.submit(ToolCall(id="c", name=f"{variant.name}.dawdle", arguments={"key": key}))
    wait_until(lambda: _call(tools, variant, "fate", key=key).content == "begun", "the tool begins")
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED
    if variant.hears_cancel:
        wait_until(lambda: _call(tools, variant, "fate", key=key).content == "cancelled", "the tool is cancelled")
    assert _call(tools, variant, "echo", text="still here").content == "still here"


@each_variant
def test_32_calls_share_one_session(tools: ToolExecutor, variant: Variant, worker: Worker) -> None:
    async def ask() -> list[ToolResult]:
        async with AsyncToolExecutor(timeout_s=30) as executor:
            return await executor.execute_many(
                ToolCall(id=str(number), name=f"{variant.name}.wait", arguments={"seconds": number / 100, "steps": 1})
                for number in range(32)
            )

    _call(tools, variant, "echo", text="connect")
    connections = worker.log.count(f"connected to MCP server {variant.name}:")
    assert [result.content for result in asyncio.run(ask())] == [f"done after {n / 100:g} s" for n in range(32)]
    assert worker.log.count(f"connected to MCP server {variant.name}:") == connections


@pytest.mark.parametrize("variant", LISTENING, ids=lambda variant: variant.name)
def test_headers_and_bearer_token_arrive(tools: ToolExecutor, variant: Variant) -> None:
    for name, value in (("authorization", "Bearer open-sesame"), ("x-team", "sre")):
        digest = hashlib.sha256(value.encode()).hexdigest()
        assert _call(tools, variant, "has_header", name=name, value_sha256=digest).structured == {"result": True}


@pytest.fixture(scope="module")
def restarted(tools: ToolExecutor, worker: Worker, servers: ListeningServers) -> None:
    """All servers at once, to save time; each test looks at one."""
    for variant in VARIANTS:
        assert _call(tools, variant, "echo", text="before").content == "before"

    def restart(variant: Variant) -> None:
        if variant.listens:
            servers.stop(variant)
            servers.start(variant)
        else:
            process = _server_process(worker, variant)
            process.kill()
            wait_until(lambda: not is_alive(process), "the server is gone")

    with ThreadPoolExecutor(3) as at_once:
        list(at_once.map(restart, VARIANTS))


@each_variant
@pytest.mark.usefixtures("restarted")
def test_calls_go_on_after_a_restart_of_the_server(tools: ToolExecutor, variant: Variant) -> None:
    assert _call(tools, variant, "echo", text="after").content == "after"


def test_a_server_that_is_down_is_back_with_the_first_call(tools: ToolExecutor, servers: ListeningServers) -> None:
    variant = next(variant for variant in VARIANTS if variant.name == "http-new")
    servers.stop(variant)
    down = _call(tools, variant, "echo", text="anybody?")
    assert (down.outcome, down.error_code) == (Outcome.UNAVAILABLE, ErrorCode.SERVER_UNAVAILABLE)
    servers.start(variant)
    assert _call(tools, variant, "echo", text="hello").content == "hello"


def _server_process(worker: Worker, variant: Variant) -> psutil.Process:
    arguments = warm_command(either_era.__file__, *variant.options)["args"]
    [process] = [child for child in worker.children() if read_command(child)[1:] == arguments]
    return process

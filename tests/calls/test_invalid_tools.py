"""Tools that are not valid in MCP: they are left out and named, and all other tools of their server work."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.celery_app import build_app
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.processes import Worker, free_port, listening, wait_until
from tests.servers import invalid_tools, listing_file, misbehaving_stdio, misbehaving_web

LEFT_OUT = ["'untyped': ", "'described': ", "'password: __MASKED", "'number 5': ", "'number 6': "]
REFRESH = ("mcp_refresh", {"server": "changing"})
VALID = {"name": "fine", "inputSchema": {"type": "object"}}


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("listed") / "tools.json"
    path.write_text(json.dumps([VALID]))
    return path


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, listed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    kind = "lists-invalid-tools"
    servers: dict[str, Any] = {
        "stdio": {"command": sys.executable, "args": [invalid_tools.__file__]},
        "http": {"url": f"{url}/http/call/{kind}"},
        "sse": {"type": "sse", "url": f"{url}/sse/call/{kind}"},
        "changing": {"command": sys.executable, "args": [listing_file.__file__, str(listed)]},
    }
    with listening([sys.executable, misbehaving_web.__file__, str(port)], port, tmp_path_factory.mktemp("web")):
        worker = start_worker(servers)
        yield worker
        worker.stop()


@pytest.fixture
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=30) as found:
        yield found


@pytest.mark.parametrize("server", ["stdio", "http", "sse"])
def test_the_other_tools_of_a_server_work(tools: ToolExecutor, worker: Worker, server: str) -> None:
    assert tools.execute(f"{server}.echo", {"text": "still here"}).content == "still here"
    found = [tool.tool for tool in tools.list_tools() if tool.server == server]
    assert sorted(found) == ["act", "echo"]
    unknown = tools.execute(f"{server}.untyped", {})
    assert (unknown.outcome, unknown.error_code) == (Outcome.REJECTED, ErrorCode.UNKNOWN_TOOL)
    (line,) = [
        line for line in worker.log.splitlines() if f"MCP server {server} lists tools that are not valid" in line
    ]
    assert [words for words in LEFT_OUT if words not in line] == []
    assert "'untyped': inputSchema.type: Field required" in line
    assert "forged" not in line
    assert misbehaving_stdio.SECRET not in line


def test_operators_see_which_tools_were_left_out(tools: ToolExecutor, worker: Worker) -> None:
    tools.list_tools()

    def shown() -> str:
        return run_command("tools", "list", "stdio", environment=worker.environment).stderr

    wait_until(
        lambda: "the tool 'untyped' is not valid in MCP" in " ".join(shown().split()), "the catalogue has it", 30
    )


def test_a_change_is_logged_once(worker: Worker, listed: Path) -> None:
    def refresh(*invalid: str) -> int:
        listed.write_text(json.dumps([VALID, *({"name": each} for each in invalid)]))
        with build_app({"broker_url": worker.environment["TARSY_REDIS_URL"]}) as app:
            for _ in range(3):
                ((reply,),) = (
                    each.values() for each in app.control.broadcast(*REFRESH, reply=True, timeout=10, limit=1)
                )
                assert reply["ok"]["done"]
        return worker.log.count("MCP server changing lists tools that are not valid")

    assert [refresh(), refresh("a"), refresh("a", "b"), refresh(), refresh("a")] == [0, 1, 2, 2, 3]

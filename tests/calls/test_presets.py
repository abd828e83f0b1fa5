"""Presets against the real thing: entries as `servers add --preset` writes them, and the servers that they start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.config.presets import PRESETS, build_preset
from tests.conftest import StartWorker
from tests.npm import npm_server
from tests.postgres import running_postgres
from tests.processes import Worker, wait_until

pytestmark = pytest.mark.timeout(300)  # the first run downloads the servers

ROLE, PASSWORD = "shopkeeper", "of-the-shop-4711"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_postgres(tmp_path_factory.mktemp("postgres"), ROLE, PASSWORD) as port:
        yield port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, folder: Path, port: int) -> Worker:
    npm_server("server-filesystem")  # skips where npm can install nothing
    servers = {"files": build_preset("filesystem", [str(folder)]), "db": build_preset("postgres", [])}
    environment = {
        "POSTGRES_HOST": "127.0.0.1",
        "POSTGRES_PORT": str(port),
        "POSTGRES_DATABASE": "postgres",
        "POSTGRES_USER": ROLE,
        "POSTGRES_PASSWORD": PASSWORD,
    }
    worker = start_worker(servers, environment=environment)
    for name in servers:
        worker.wait_for_log(f"connected to MCP server {name}", 240)
    return worker


@pytest.fixture
def tools() -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=60) as tools:
        yield tools


@pytest.mark.parametrize(("server", "preset"), [("files", "filesystem"), ("db", "postgres")])
def test_a_preset_names_the_tools_of_its_version(tools: ToolExecutor, server: str, preset: str) -> None:
    listed = wait_until(lambda: [tool.tool for tool in tools.list_tools() if tool.server == server], "it lists them")
    assert sorted(listed) == sorted(PRESETS[preset].tools)


def test_files_are_written_and_read_in_the_folder_only(tools: ToolExecutor, folder: Path, tmp_path: Path) -> None:
    path = folder / "note.txt"
    tools.execute("files.write_file", {"path": str(path), "content": "three apples"}).raise_for_outcome()
    assert path.read_text() == "three apples"
    assert tools.execute("files.read_text_file", {"path": str(path)}).content == "three apples"
    outside = tmp_path / "secret.txt"
    outside.write_text("of somebody else")
    assert tools.execute("files.read_text_file", {"path": str(outside)}).outcome is Outcome.TOOL_ERROR


def test_a_database_is_asked(tools: ToolExecutor) -> None:
    result = tools.execute("db.execute_sql", {"sql": "select 6 * 7 as answer"})
    assert result.outcome is Outcome.OK, result.content
    assert "42" in result.content
    assert tools.execute("db.execute_sql", {"sql": "select * from nowhere"}).outcome is Outcome.TOOL_ERROR


def test_the_password_of_the_role_is_masked(tools: ToolExecutor) -> None:
    result = tools.execute("db.execute_sql", {"sql": f"select '{PASSWORD}' as said"})
    assert PASSWORD not in result.model_dump_json()

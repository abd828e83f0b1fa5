"""What most of these tests need: a folder of ledgers, a server over HTTP that writes them, and an agent."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarsy_tasks import ToolExecutor
from tests.processes import Worker, free_port, listening
from tests.servers import witness_http


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ledgers of the module's servers are."""
    return tmp_path_factory.mktemp("ledgers")


@pytest.fixture(scope="module")
def witness_url(directory: Path) -> Iterator[str]:
    """Of `witness_http`, without a path; its ledgers are in `directory`."""
    port = free_port()
    with listening([sys.executable, witness_http.__file__, str(port), str(directory)], port, directory):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def tools(worker: Worker) -> ToolExecutor:
    """An agent of the module's worker."""
    return ToolExecutor(timeout_s=60)

"""Fixtures of pytest. Loaded in every run of pytest, also of other projects: it imports nothing but pytest.

tarsy_servers   the MCP servers of the stack; override it in your conftest.py
tarsy_stack     Valkey and a worker, for the whole run
scripted_server an MCP server to script, for one test
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tarsy_tasks.testing.server import ScriptedServer
    from tarsy_tasks.testing.stack import TarsyStack

__all__ = ["scripted_server", "tarsy_servers", "tarsy_stack"]


@pytest.fixture(scope="session")
def tarsy_servers() -> Any:
    """Entries of `mcpServers` by name, or the path of a configuration file."""
    raise pytest.UsageError(
        "tarsy_stack: which MCP servers? Define a fixture `tarsy_servers` with scope session in your conftest.py that "
        'returns {"name": {"command": …}}, or the path of a configuration file'
    )


@pytest.fixture(scope="session")
def tarsy_stack(tarsy_servers: Any, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[TarsyStack]":
    """A private Valkey and a worker with `tarsy_servers`; executors in this process use it."""
    from tarsy_tasks.testing.stack import TarsyStack

    with TarsyStack(tarsy_servers, tmp_path_factory.mktemp("tarsy")) as stack:
        yield stack


@pytest.fixture
def scripted_server() -> "Iterator[ScriptedServer]":
    """A `ScriptedServer` that runs during the test."""
    from tarsy_tasks.testing.server import ScriptedServer

    with ScriptedServer() as server:
        yield server

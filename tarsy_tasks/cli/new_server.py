"""`tarsy-tasks servers new`: an MCP server to begin with, and a test that calls it as agents do."""

import re
import shlex
from pathlib import Path

import click

from tarsy_tasks.config.server_ids import SERVER_ID_PATTERN
from tarsy_tasks.errors import ConfigError

__all__ = ["new"]

_SERVER = '''"""The MCP server NAME."""

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("NAME")
reads_only = ToolAnnotations(read_only_hint=True)
names: list[str] = []


@server.tool()
def add_name(name: str) -> str:
    """Add a name to the list."""
    if name in names:
        raise ToolError(f"{name} is on the list already")
    names.append(name)
    return f"added {name}"


@server.tool(annotations=reads_only)
def list_names() -> list[str]:
    """All names of the list, in the order in which they were added."""
    return names


if __name__ == "__main__":
    server.run("stdio")
'''
_TEST = '''"""The tools of NAME, called through a queue and a worker, as agents do. Run it with `pytest`."""

import sys
from pathlib import Path

import pytest

from tarsy_tasks import Outcome, ToolExecutor


@pytest.fixture(scope="session")
def tarsy_servers():
    return {"NAME": {"command": sys.executable, "args": [str(Path(__file__).with_name("server.py"))]}}


@pytest.fixture
def tools(tarsy_stack):
    with ToolExecutor(["NAME"], timeout_s=30) as tools:
        yield tools


def test_a_name_is_listed_once_it_was_added(tools):
    tools.execute("NAME.add_name", {"name": "Ada"}).raise_for_outcome()
    assert tools.execute("NAME.list_names").structured == {"result": ["Ada"]}


def test_a_name_is_added_once(tools):
    tools.execute("NAME.add_name", {"name": "Grace"}).raise_for_outcome()
    result = tools.execute("NAME.add_name", {"name": "Grace"})
    assert result.outcome is Outcome.TOOL_ERROR
    assert "on the list already" in result.content


def test_arguments_that_do_not_fit_are_rejected(tools):
    assert tools.execute("NAME.add_name", {}).outcome is Outcome.REJECTED
'''
_FILES = {"server.py": _SERVER, "test_server.py": _TEST}


@click.command()
@click.argument("name")
@click.option("--directory", type=click.Path(path_type=Path), help="A new folder for it; by default NAME, here.")
def new(name: str, directory: Path | None) -> None:
    """Write the custom server NAME: a program with two tools, and a test that runs it through the queue."""
    if not re.fullmatch(SERVER_ID_PATTERN, name):
        raise click.UsageError(f"{name!r} is not the id of a server: use letters, digits, - and _, and no __")
    folder = (directory or Path(name)).absolute()
    try:
        folder.mkdir(parents=True)
        for file, text in _FILES.items():
            (folder / file).write_text(text.replace("NAME", name))
    except FileExistsError:
        raise ConfigError(f"{folder}: there is something of that name already; nothing was written") from None
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None
    place = shlex.quote(str(folder))
    click.echo(f"{folder}: wrote {' and '.join(_FILES)}")
    click.echo(f"test it:  python -m pytest {place}")
    click.echo(f"serve it: tarsy-tasks servers add {name} -- python {shlex.quote(str(folder / 'server.py'))}")

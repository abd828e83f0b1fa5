"""The names of servers and tools that were last seen in a directory, for the completion of a shell.

Owns a small file next to the run file. Reading it takes neither Redis nor a worker, because a shell waits for it.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tarsy_tasks.cli.run_files import stack_dir
from tarsy_tasks.own_files import read_own_file, write_own_file

if TYPE_CHECKING:
    import click

__all__ = ["complete_server", "complete_tool", "known_names", "remember_names"]

_FILE = "names.json"
_MAX_BYTES = 4_000_000


def remember_names(servers: Iterable[str], tools: Mapping[str, Iterable[str]]) -> None:
    """Keep the names of the configured servers, and of the tools of some of them. Where the file cannot be written,
    there is no completion.
    """
    with suppress(OSError):
        directory = stack_dir(Path.cwd())
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = known_names()
        found = {server: sorted(tools.get(server, before.get(server, ()))) for server in servers}
        write_own_file(directory / _FILE, json.dumps(found))


def known_names() -> dict[str, list[str]]:
    """The tools of each server, by server."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found: Any = json.loads(read_own_file(stack_dir(Path.cwd()) / _FILE, _MAX_BYTES))
        return {str(server): [str(tool) for tool in tools] for server, tools in found.items()}
    return {}


def complete_server(_ctx: "click.Context", _param: "click.Parameter", incomplete: str) -> list[str]:
    """For `shell_complete` of a parameter that names a server."""
    return [server for server in known_names() if server.startswith(incomplete)]


def complete_tool(_ctx: "click.Context", _param: "click.Parameter", incomplete: str) -> list[str]:
    """For `shell_complete` of a parameter that names a tool, as SERVER.TOOL."""
    names = (f"{server}.{tool}" for server, tools in known_names().items() for tool in tools)
    return [name for name in names if name.startswith(incomplete)]

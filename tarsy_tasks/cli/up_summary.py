"""What `tarsy-tasks up` prints once its processes run: a line per server, the dashboard, and what to type next."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rich.text import Text

from tarsy_tasks.cli.known_names import remember_names
from tarsy_tasks.cli.output import console
from tarsy_tasks.cli.program import program
from tarsy_tasks.cli.run_files import REDIS_URL_FILE
from tarsy_tasks.cli.stack import listens
from tarsy_tasks.telemetry.printable import make_visible

if TYPE_CHECKING:
    from tarsy_tasks.cli.first_calls import FirstCall

__all__ = ["Summary"]

_DEFAULT_CONFIGS = ("mcp.json", "mcp.yaml")


@dataclass
class Summary:
    """The summary of one stack.

    Attributes:
        directory: Where it was started.
        files: The directory of its run file.
        log: Of its worker.
        link: To the dashboard; empty without one.
    """

    servers: Sequence[str]
    directory: Path
    config: Path
    files: Path
    log: Path
    link: str
    _found: dict[str, "FirstCall"] = field(default_factory=dict[str, "FirstCall"])
    _is_complete: bool = False

    @property
    def waiting(self) -> list[str]:
        """The servers that have neither worked nor failed."""
        return [server for server in self.servers if server not in self._found or self._found[server].is_starting]

    @property
    def is_due(self) -> bool:
        """Whether all servers have their lines, and the dashboard answers, and it was not printed yet."""
        port = urlsplit(self.link).port
        return not self._is_complete and not self.waiting and (port is None or listens(port))

    def show(self, found: "FirstCall") -> None:
        """Print the line of a server; another one when a slow start ends, or a server that failed works."""
        self._found[found.server] = found
        if found.works:
            remember_names(self.servers, {found.server: [tool.tool for tool in found.tools]})
        width = max(map(len, self.servers))
        if found.works:
            state, text = Text("works", "green"), found.text
        elif found.is_starting:
            state, text = Text("still starting", "yellow"), found.text
        else:
            state, text = Text("fails", "red"), f"{found.text} It is tried again"
        console.print(Text.assemble(f"{found.server:<{width}}  ", state, f"  {make_visible(text)}"))

    def show_next_steps(self) -> None:
        """Print the rest, once."""
        self._is_complete = True
        own = program(self.directory)
        if self.link:
            console.print(f"\ndashboard: {self.link}")
        console.print(f"log: {self.log}")
        console.print("next, in another terminal in this directory:")
        answered = next(filter(None, (self._found[server].answered for server in self.servers)), "")
        console.print(f"  {own} tools list")
        if answered:
            console.print(f"  {own} call {answered}")
        if any(not found.works for found in self._found.values()):
            console.print(f"  {own} doctor")
        console.print("for an agent on this machine:")
        console.print(f"  export TARSY_REDIS_URL_FILE={shlex.quote(str(self.files / REDIS_URL_FILE))}")
        if self.config not in [self.directory.resolve() / name for name in _DEFAULT_CONFIGS]:
            console.print(f"  export TARSY_MCP_CONFIG={shlex.quote(str(self.config))}")
        console.print("Ctrl-C stops everything.")

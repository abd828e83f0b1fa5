"""What the commands that ask servers have in common: their executor, asking several servers, and pairs of name and
value."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click
from rich.text import Text

import tarsy_tasks
from tarsy_tasks.cli.output import busy, notes

if TYPE_CHECKING:
    from tarsy_tasks import ToolExecutor

__all__ = ["ask_servers", "build_executor", "read_pairs", "report_failed"]


def build_executor(timeout_s: float, servers: Sequence[str] | None = None) -> "ToolExecutor":
    """An executor of these servers, or of all.

    Raises:
        UsageError: The timeout is no usable number.
    """
    from tarsy_tasks import ToolExecutor

    try:
        return ToolExecutor(servers, timeout_s=timeout_s, app=tarsy_tasks.app)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def ask_servers(
    servers: tuple[str, ...], timeout_s: float, what: str, ask: "Callable[[ToolExecutor, str], None]"
) -> dict[str, str]:
    """Ask servers, or all of them, for what they have; why it failed, by server.

    Args:
        what: What is asked for, in the plural.
    """
    # Not above: the completion of a shell imports the commands, too.
    from tarsy_tasks import OutcomeError
    from tarsy_tasks.cli.health import selected_servers

    names = selected_servers(servers)
    failed: dict[str, str] = {}
    executor = build_executor(timeout_s, names)
    for server in names:
        with busy(f"asking the workers for the {what} of {server}"):
            try:
                ask(executor, server)
            except OutcomeError as error:
                failed[server] = error.result.content
    return failed


def report_failed(failed: Mapping[str, str]) -> None:
    """Say which servers failed, and why."""
    for server, why in failed.items():
        notes.print(Text(f"{server}: {why}"), style="red")


def read_pairs(words: tuple[str, ...], what: str) -> dict[str, str]:
    """`NAME=VALUE` words.

    Args:
        what: What each of them is, for the error.

    Raises:
        UsageError: One has no `=`.
    """
    pairs = [word.partition("=") for word in words]
    if wrong := [name for name, separator, _ in pairs if not separator]:
        raise click.UsageError(f"{what} is NAME=VALUE, not {wrong[0]!r}")
    return {name: value for name, _, value in pairs}

"""The command line: `tarsy-tasks …`, mounted a second time as `celery -A tarsy_tasks mcp …`.

Owns the group, the exit codes and which module a command lies in. Celery imports this module for each of its own
commands, so a command's module is imported only when that command runs.
"""

from importlib import import_module
from typing import Any

import click

from tarsy_tasks.errors import BrokerUnavailable, ConfigError, TarsyTasksError
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["FAILED", "OK", "UNAVAILABLE", "USAGE", "main"]

OK, FAILED, USAGE, UNAVAILABLE = range(4)
"""Exit codes: fine; the tool or a check said no; usage or configuration; unavailable."""

_COMMANDS = {
    "acl": ("tarsy_tasks.cli.acl", "acl"),
    "alive": ("tarsy_tasks.cli.probes", "alive"),
    "audit": ("tarsy_tasks.cli.audit", "audit"),
    "call": ("tarsy_tasks.cli.call", "call"),
    "config": ("tarsy_tasks.cli.config", "config"),
    "demo": ("tarsy_tasks.cli.demo", "demo"),
    "doctor": ("tarsy_tasks.cli.doctor", "doctor"),
    "flower": ("tarsy_tasks.cli.dashboard", "flower"),
    "poison": ("tarsy_tasks.cli.poison", "poison"),
    "ready": ("tarsy_tasks.cli.probes", "ready"),
    "health": ("tarsy_tasks.cli.health", "health"),
    "servers": ("tarsy_tasks.cli.servers", "servers"),
    "tools": ("tarsy_tasks.cli.tools", "tools"),
    "up": ("tarsy_tasks.cli.up", "up"),
}


class _LazyGroup(click.Group):
    """A group whose commands are imported on use, and whose errors become exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        return getattr(import_module(module), name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TarsyTasksError as error:
            click.echo(make_visible(f"tarsy-tasks: {error}", keep="\n"), err=True)
            ctx.exit(_exit_code(error))
        except click.UsageError as error:
            raise click.UsageError(make_visible(error.format_message(), keep="\n"), error.ctx) from error


def _exit_code(error: TarsyTasksError) -> int:
    if isinstance(error, ConfigError):
        return USAGE
    return UNAVAILABLE if isinstance(error, BrokerUnavailable) else FAILED


# Celery mounts the group under this name.
@click.group(name="mcp", cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tarsy-tasks")
def main() -> None:
    """MCP tool calls as Celery tasks.

    Exit codes: 0 fine, 1 the tool or a check said no, 2 usage or configuration, 3 unavailable.
    """

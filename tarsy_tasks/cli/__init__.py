"""The command line: `tarsy-tasks …`, mounted a second time as `celery -A tarsy_tasks mcp …`.

Owns the group, the exit codes and the module of each command (`_MODULES`). Celery imports this module for all of its
own commands, so a command's module is imported only when that command runs. The other modules:

    server_requests, broker, known_names   asking servers, reading Redis, names for the completion of a shell
    output, tables, call_progress, program   what is printed
    stack, stack_logs, run_files, first_calls, up_summary   the processes of `up` and `demo`, and what `up` shows
    server_sources, new_server, configuration_record, importing   parts of `servers` and of `config import`
    redirect                      the redirect address of a sign-in
"""

from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from tarsy_tasks.cli.run_files import adopt_stack, explain_missing_stack
from tarsy_tasks.errors import BrokerUnavailable, ConfigError, TarsyTasksError
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["FAILED", "MAY_HAVE_RUN", "OK", "UNAVAILABLE", "USAGE", "main"]

OK, FAILED, USAGE, UNAVAILABLE, MAY_HAVE_RUN = range(5)
"""Exit codes: success; the tool or a check failed; wrong usage or configuration; Redis, a worker or a server
unavailable, and no tool ran; no answer, and the tool may have run."""

_MODULES = {
    "acl": "acl",
    "alive": "probes",
    "answer": "answer",
    "approve": "inbox",
    "audit": "audit",
    "auth": "auth",
    "call": "call",
    "config": "config",
    "dead-letters": "dead_letters",
    "demo": "demo",
    "deny": "inbox",
    "doctor": "doctor",
    "flower": "dashboard",
    "health": "health",
    "inbox": "inbox",
    "limits": "limits",
    "policy": "policy",
    "preflight": "preflight",
    "prompts": "prompts",
    "read": "resources",
    "ready": "probes",
    "resources": "resources",
    "results": "results",
    "servers": "servers",
    "tools": "tools",
    "up": "up",
}
_ALIASES = {"poison": "dead-letters"}
"""Former names, which still work and are not listed."""
_WITHOUT_STACK = ("demo", "up")
"""They start their own."""


class _LazyGroup(click.Group):
    """A group whose commands are imported on use, and whose errors become exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        name = _ALIASES.get(cmd_name, cmd_name)
        if name not in _MODULES:
            return None
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name.replace("-", "_"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=_MODULES, ctx=ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem[str]]":
        """Names only: a shell waits for them, and their help would take the import of every command."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name) for name in sorted(_MODULES) if name.startswith(incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TarsyTasksError as error:
            text = f"tarsy-tasks: {error}"
            if isinstance(error, BrokerUnavailable) and (hint := explain_missing_stack()):
                text = f"{text}\n{hint}"
            click.echo(make_visible(text, keep="\n"), err=True)
            ctx.exit(_exit_code(error))
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise click.UsageError(make_visible(error.format_message(), keep="\n"), error.ctx) from error


def _exit_code(error: TarsyTasksError) -> int:
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, BrokerUnavailable):
        return MAY_HAVE_RUN if error.may_have_run else UNAVAILABLE
    return FAILED


# Celery mounts the group under this name.
@click.group(name="mcp", cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tarsy-tasks")
@click.pass_context
def main(ctx: click.Context) -> None:
    """MCP tool calls as Celery tasks.

    Exit codes: 0 success, 1 the tool or a check failed, 2 wrong usage or configuration, 3 Redis, a worker or an MCP
    server is unavailable, 4 there is no answer, and the tool may have run.
    """
    if ctx.invoked_subcommand not in _WITHOUT_STACK:
        adopt_stack()

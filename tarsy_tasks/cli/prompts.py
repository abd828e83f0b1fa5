"""`tarsy-tasks prompts`: what prompts the servers offer, and getting one."""

from typing import TYPE_CHECKING

import click

from tarsy_tasks.cli import UNAVAILABLE
from tarsy_tasks.cli.call import exit_code, print_result
from tarsy_tasks.cli.known_names import complete_server
from tarsy_tasks.cli.output import json_option, print_json, print_table
from tarsy_tasks.cli.server_requests import ask_servers, build_executor, read_pairs, report_failed

if TYPE_CHECKING:
    from tarsy_tasks import PromptDefinition, ToolExecutor

__all__ = ["prompts"]


@click.group()
def prompts() -> None:
    """List and get the prompts of the MCP servers."""


@prompts.command("list")
@click.argument("servers", nargs=-1, shell_complete=complete_server)
@click.option("--timeout", "timeout_s", default=30.0, show_default=True, help="Seconds to wait for the workers.")
@json_option
def list_prompts(servers: tuple[str, ...], timeout_s: float, *, as_json: bool) -> None:
    """List the prompts of SERVERS, or of all servers; arguments in brackets may be left out.

    The workers are asked. Exit code 3 when one of them does not answer for a server.
    """
    found: list[PromptDefinition] = []

    def ask(executor: "ToolExecutor", server: str) -> None:
        found.extend(executor.list_prompts(server))

    failed = ask_servers(servers, timeout_s, "prompts", ask)
    if as_json:
        print_json({"prompts": [each.model_dump(mode="json") for each in found], "failed_servers": failed})
    else:
        rows = [
            (
                each.server,
                each.name,
                " ".join(one.name if one.required else f"[{one.name}]" for one in each.arguments),
                each.description or each.title,
            )
            for each in found
        ]
        print_table(("server", "prompt", "arguments", "description"), rows, nothing="no prompts")
        report_failed(failed)
    if failed:
        raise click.exceptions.Exit(UNAVAILABLE)


@prompts.command("get")
@click.argument("server", shell_complete=complete_server)
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds to wait for the answer.")
@json_option
def get_prompt(server: str, name: str, arguments: tuple[str, ...], timeout_s: float, *, as_json: bool) -> None:
    """Get the prompt NAME of SERVER with these arguments: its messages."""
    result = build_executor(timeout_s).get_prompt(server, name, read_pairs(arguments, "an argument"))
    if as_json:
        messages = [each.model_dump(mode="json") for each in result.messages]
        print_json({**result.model_dump(mode="json"), "messages": messages, "is_error": result.is_error})
    else:
        print_result(result)
    raise click.exceptions.Exit(exit_code(result))

"""`tarsy-tasks call`: one tool call from the shell, sent like an agent's."""

import json
import sys
from typing import TYPE_CHECKING, Any

import click

import tarsy_tasks
from tarsy_tasks.cli import FAILED, MAY_HAVE_RUN, OK, UNAVAILABLE
from tarsy_tasks.cli.known_names import complete_tool
from tarsy_tasks.cli.output import console, counted, json_option, notes, print_json
from tarsy_tasks.priorities import NORMAL, PRIORITIES, Priority
from tarsy_tasks.telemetry.printable import make_visible

if TYPE_CHECKING:
    from tarsy_tasks import ToolResult

__all__ = ["call", "exit_code", "parse_words", "print_result"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="SERVER.TOOL", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1)
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds to wait for the answer.")
@click.option("--priority", type=click.Choice(PRIORITIES), default=NORMAL, show_default=True, help="Among your calls.")
@click.option("--no-cache", is_flag=True, help="Ask the MCP server even if an answer is kept.")
@json_option
def call(
    name: str,
    arguments: tuple[str, ...],
    timeout_s: float,
    priority: Priority,
    *,
    no_cache: bool,
    as_json: bool,
) -> None:
    """Call a tool.

    ARGUMENTS are `key=value` pairs (a value that is valid JSON is sent as JSON), or one text as a model would write it,
    such as a JSON object. `-` reads the text from standard input.
    """
    # Not above: the completion of a shell imports this module, too.
    from tarsy_tasks import ToolCall, ToolExecutor
    from tarsy_tasks.cli.call_progress import follow

    try:
        executor = ToolExecutor(timeout_s=timeout_s, priority=priority, app=tarsy_tasks.app)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    with executor:
        is_shown = notes.is_terminal and not as_json
        asked = ToolCall(id="cli", name=name, arguments=parse_words(arguments), no_cache=no_cache)
        pending = executor.submit(asked, events=is_shown)
        try:
            if is_shown:
                follow(pending)
            result = pending.result()
        except KeyboardInterrupt:
            pending.cancel()
            result = pending.result()
    if as_json:
        print_json({**result.model_dump(mode="json"), "is_error": result.is_error})
    else:
        print_result(result)
    raise click.exceptions.Exit(exit_code(result))


def parse_words(words: tuple[str, ...]) -> dict[str, Any] | str | None:
    if not words:
        return None
    if words == ("-",):
        return sys.stdin.read()
    pairs = [word.partition("=") for word in words]
    if all(key.isidentifier() and separator for key, separator, _ in pairs):
        return {key: _parse_value(value) for key, _, value in pairs}
    return " ".join(words)


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def print_result(result: "ToolResult") -> None:
    click.echo(make_visible(result.content, keep="\n\t") if console.is_terminal else result.content)
    if result.is_error:
        notes.print(f"{result.outcome} {result.error_code}", style="red")
    if console.is_terminal:
        source = ", cached" if result.cached else ""
        notes.print(f"{result.duration_s:.3g} s, {counted(len(result.attachments), 'attachment')}{source}", style="dim")


def exit_code(result: "ToolResult") -> int:
    from tarsy_tasks import Outcome

    codes = {
        Outcome.OK: OK,
        Outcome.TOOL_ERROR: FAILED,
        Outcome.REJECTED: FAILED,
        Outcome.UNAVAILABLE: UNAVAILABLE,
    }
    return codes.get(result.outcome, MAY_HAVE_RUN)

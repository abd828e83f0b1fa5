"""`tarsy-tasks results`: large results that are kept whole."""

import click

from tarsy_tasks.agent.large_results import PAGE_CHARS, Part, read_kept, read_part
from tarsy_tasks.broker import keys
from tarsy_tasks.cli.broker import broker
from tarsy_tasks.cli.output import console, json_option, notes, print_json
from tarsy_tasks.errors import ResultNotFound
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["results"]


@click.group()
def results() -> None:
    """Read large results, of which a model got the beginning and the end."""


@results.command()
@click.argument("handle")
@click.option("--agent", default="", help="Whose result it is: the agent's id, or its Redis user if it is bound.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="The first character.")
@click.option("--limit", type=click.IntRange(1), default=PAGE_CHARS, show_default=True, help="How many characters.")
@click.option("--contains", help="Only lines with this text, each after its offset.")
@click.option("--part", type=click.Choice(["content", "structured"]), default="content", show_default=True)
@json_option
def read(handle: str, agent: str, offset: int, limit: int, contains: str | None, part: Part, *, as_json: bool) -> None:
    """Read a part of a large result.

    HANDLE is in the first line of the result that was cut; it is the id of the task.
    """
    if contains == "":
        raise click.UsageError("--contains needs a text that is not empty")
    owners = (keys.result_owner("", agent), *([keys.result_owner(agent, None)] if agent else ()))
    with broker() as redis:
        whole = read_kept(handle, owners, lambda *command: redis.execute_command(*command))
    if not whole:
        raise ResultNotFound(
            f"nothing is kept under {handle:.64} for {f'the agent {agent}' if agent else 'calls without an agent id'}; "
            "name the agent with --agent, or the result is no longer kept"
        )
    found = read_part(whole, handle, offset=offset, limit=limit, contains=contains, part=part)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    click.echo(make_visible(found.text, keep="\n\t") if console.is_terminal else found.text)
    end = "the end" if found.next_offset is None else f"go on with --offset {found.next_offset}"
    notes.print(f"of {found.total_chars} characters; {end}", style="dim")

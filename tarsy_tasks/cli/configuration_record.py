"""`tarsy-tasks servers publish`, `export` and `history`: the configuration in Redis as a whole, and its versions."""

from pathlib import Path

import click

from tarsy_tasks.cli.output import json_option, local_time, notes, print_json, print_table
from tarsy_tasks.operators import Operator

__all__ = ["export", "history", "publish"]


@click.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--digest", help="Of the version that you have changed; refused if it is not the current one.")
@json_option
def publish(path: Path, digest: str | None, *, as_json: bool) -> None:
    """Make the file at PATH the configuration in Redis (`TARSY_MCP_CONFIG=redis`), for all parts of the deployment."""
    operator = Operator()
    written = operator.publish(path, digest=digest)
    if as_json:
        print_json({"path": operator.place, "digest": written})
    else:
        click.echo(f"{operator.place}: it is {written} now. Workers that read it take it within 5 s")


@click.command()
@click.option("--version", "number", type=int, metavar="N", help="This one of `servers history`, not the latest.")
def export(number: int | None) -> None:
    """Print the configuration in Redis, as a file that `servers publish` takes."""
    found = Operator().history()
    version = next((each for each in found if number in (None, each.number)), None)
    if version is None:
        what = "Redis has no configuration yet" if number is None else f"there is no version {number} in the history"
        raise click.UsageError(what)
    click.echo(version.text, nl=False)
    text = f"version {version.number}, {version.digest}, by {version.who}"
    if version is found[0]:
        text += (
            f"; once you have changed it, `servers publish FILE --digest {version.digest}` overwrites no other change"
        )
    notes.print(text, markup=False)


@click.command()
@json_option
def history(*, as_json: bool) -> None:
    """The versions of the configuration in Redis: when, who, and what changed."""
    found = Operator().history()
    if as_json:
        print_json([version.model_dump(exclude={"v", "text"}) for version in found])
        return
    rows = [(str(each.number), local_time(each.at), each.who, each.change, each.digest) for each in found]
    columns = ("version", "written", "who", "change", "digest")
    print_table(columns, rows, nothing="Redis has no configuration yet")

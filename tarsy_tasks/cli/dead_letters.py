"""`tarsy-tasks dead-letters`: messages moved out of their queues, because each worker that took them was lost."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

import tarsy_tasks
from tarsy_tasks.broker import dead_letters as stored
from tarsy_tasks.broker.dead_letters import DamagedMessage, DeadLetter
from tarsy_tasks.cli import FAILED
from tarsy_tasks.cli.broker import broker
from tarsy_tasks.cli.output import console, json_option, local_time, notes, print_json, print_table
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.telemetry.printable import make_visible

if TYPE_CHECKING:
    from tarsy_tasks.worker.maskers import Masker

__all__ = ["dead_letters"]

_NAME_CHARS = 200
_ids = click.argument("ids", metavar="ID…", nargs=-1, required=True)


@click.group()
def dead_letters() -> None:
    """List, show, retry or delete dead letters: messages that cost several workers, or that cannot be read.

    They are kept for a week.
    """


@dead_letters.command("list")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number.")
@json_option
def list_dead_letters(limit: int, *, as_json: bool) -> None:
    """List dead letters, newest first."""
    with broker() as redis:
        messages, total = stored.load_latest(redis, limit)
    if as_json:
        print_json({"messages": [_as_json(message) for message in messages], "total": total})
        return
    columns = ("id", "tool", "moved at", "bytes", "agent", "damage")
    print_table(columns, [_row(message) for message in messages], nothing="no dead letters")
    if total > limit:
        notes.print(f"{total - limit} older ones are not shown: --limit {total} shows all")


@dead_letters.command()
@click.argument("message_id", metavar="ID")
@click.option("--arguments", "with_arguments", is_flag=True, help="Show the arguments of the call too, masked.")
@json_option
def show(message_id: str, *, with_arguments: bool, as_json: bool) -> None:
    """Show one dead letter. Exit code 1 when there is none with that ID."""
    with broker() as redis:
        message = stored.load(redis, message_id)
        if message is None:
            text = f"no message {message_id} among the dead letters: see `tarsy-tasks dead-letters list`"
            notes.print(text, style="red")
            raise click.exceptions.Exit(FAILED)
        shown = _as_json(message)
        if with_arguments and message.damage is None:
            shown["arguments"] = _masked(stored.load_arguments(redis, message_id), _masker_of(message))
    if as_json:
        print_json(shown)
        return
    for name, value in shown.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        console.print(f"{name}: {make_visible(text)}")  # a line break could pretend to be another field


@dead_letters.command()
@_ids
@json_option
def retry(ids: tuple[str, ...], *, as_json: bool) -> None:
    """Put dead letters back into their queues, without deadlines and with their delivery counts reset.

    Their agents were already answered and no longer wait. New results stay in Redis as long as any other. Exit code 1
    when one of them is not there or is damaged.
    """
    results: dict[str, str] = {}
    with broker() as redis:
        for message_id in ids:
            try:
                results[message_id] = "in its queue" if stored.retry(redis, message_id) else "not found"
            except DamagedMessage as damage:
                results[message_id] = f"damaged, not retried: {damage}"
    _report(results, "in its queue", as_json=as_json)


@dead_letters.command()
@_ids
@json_option
def drop(ids: tuple[str, ...], *, as_json: bool) -> None:
    """Delete dead letters. Exit code 1 when one of them is not there."""
    with broker() as redis:
        results = {message_id: "dropped" if stored.drop(redis, message_id) else "not found" for message_id in ids}
    _report(results, "dropped", as_json=as_json)


def _report(results: dict[str, str], success: str, *, as_json: bool) -> None:
    if as_json:
        print_json(results)
    else:
        print_table(("id", "result"), list(results.items()))
    if set(results.values()) != {success}:
        raise click.exceptions.Exit(FAILED)


def _row(message: DeadLetter) -> tuple[str, ...]:
    mask = _short(_masker_of(message))
    agent = mask((message.caller or {}).get("agent_id", ""))
    what = mask(message.tool or message.queue or "")
    return (message.id, what, local_time(message.moved_at), str(message.size_bytes), agent, message.damage or "")


def _as_json(message: DeadLetter) -> dict[str, Any]:
    mask = _short(_masker_of(message))
    return {
        "id": message.id,
        "queue": message.queue and mask(message.queue),
        "task": message.task and mask(message.task),
        "tool": message.tool and mask(message.tool),
        "caller": message.caller and {name: mask(value) for name, value in message.caller.items()},
        "set_aside_at": local_time(message.moved_at, "T"),
        "kept_s": message.kept_s,
        "size_bytes": message.size_bytes,
        "damage": message.damage,
    }


def _masker_of(message: DeadLetter) -> "Masker":
    """The masker of the message's server, or the general one when the server is not configured."""
    from tarsy_tasks.worker.maskers import build_masker, build_record_masker

    try:
        server = tarsy_tasks.app.mcp_config.servers.get((message.tool or "").partition(".")[0])
    except ConfigError:
        server = None
    return build_record_masker(server) if server else build_masker()


def _short(masker: "Masker") -> Callable[[str], str]:
    """Mask first, then cut: the half of a secret is not recognized as one."""
    return lambda text: masker.mask(text)[:_NAME_CHARS]


def _masked(arguments: Any, masker: "Masker") -> Any:
    """Arguments masked; a text that is JSON is masked by its keys too."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return masker.mask(arguments)
    return masker.mask_json(arguments)

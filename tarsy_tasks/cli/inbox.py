"""`tarsy-tasks inbox`, `approve` and `deny`: the calls that wait for people, and deciding about them."""

import getpass
import json
from typing import Any

import click

from tarsy_tasks.broker import parked_calls
from tarsy_tasks.broker.parked_calls import Decided, ParkedCallView
from tarsy_tasks.broker.parked_views import TASK
from tarsy_tasks.cli import FAILED
from tarsy_tasks.cli.broker import broker
from tarsy_tasks.cli.output import console, counted, json_option, local_time, notes, print_json, print_table
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.telemetry.decision_texts import DECISION_TEXTS, DONE, LONGEST_NAME, LONGEST_WHY, describe_sender
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["approve", "clean_name", "deny", "inbox"]

_SHORT_CHARS = 60
_REASONS = {"approval": "approval", INPUT_REQUIRED: "answers"}


@click.command()
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number.")
@click.option("--tasks", is_flag=True, help="Instead, the calls that wait for tasks of MCP servers.")
@json_option
def inbox(limit: int, *, tasks: bool, as_json: bool) -> None:
    """List the calls that wait for people, those first that expire first. See `approve`, `deny` and `answer`."""
    with broker() as redis:
        found, total = parked_calls.load_waiting(redis, limit, for_tasks=tasks)
    if as_json:
        print_json({"calls": [_as_json(view) for view in found], "parked": total})
        return
    last = "task of the server" if tasks else "approved by"
    columns = ("id", "waits for", "tool", "arguments or question", "agent", "waits until", last)
    print_table(columns, map(_row, found), nothing=f"no calls wait for {'tasks of servers' if tasks else 'people'}")
    if len(found) == limit < total:
        notes.print(f"{total - limit} more of {counted(total, 'call')} that wait; --limit shows more")


_id = click.argument("task_id", metavar="ID")
_by = click.option("--as", "by", default="", metavar="NAME", help="Who decides; the default is your login name.")


@click.command()
@_id
@_by
@click.option("--why", default="", help="The reason, for the audit.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def approve(task_id: str, by: str, why: str, *, yes: bool, as_json: bool) -> None:
    """Approve a call of the inbox; it then runs, once, as shown. Exit code 1 when it was not approved."""
    _decide(task_id, by, why, is_approved=True, asks=not (yes or as_json), as_json=as_json)


@click.command()
@_id
@_by
@click.option("--why", default="", help="The reason, for the agent and the audit.")
@json_option
def deny(task_id: str, by: str, why: str, *, as_json: bool) -> None:
    """Deny a call of the inbox; its agent gets the reason. Exit code 1 when it was not denied."""
    _decide(task_id, by, why, is_approved=False, asks=False, as_json=as_json)


def _decide(task_id: str, by: str, why: str, *, is_approved: bool, asks: bool, as_json: bool) -> None:
    by = clean_name(by)
    if len(why) > LONGEST_WHY:
        raise click.UsageError(f"--why takes a reason of up to {LONGEST_WHY} characters")
    with broker() as redis:
        view = parked_calls.load(redis, task_id)
        if view is not None and asks:
            for name, value in _as_json(view).items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                console.print(f"{name}: {make_visible(text)}")  # a line break could pretend to be another field
            click.confirm("Approve it?", abort=True)
        decided = Decided.UNKNOWN
        if view is not None:
            decided = parked_calls.decide(redis, view, is_approved=is_approved, by=by, why=" ".join(why.split()))
    if as_json:
        print_json({"id": task_id, "result": decided})
    else:
        (console if decided in DONE else notes).print(f"{make_visible(task_id)}: {DECISION_TEXTS[decided]}")
    if decided not in DONE:
        raise click.exceptions.Exit(FAILED)


def clean_name(by: str) -> str:
    """Who decides or answers: as they say, or else their login name."""
    by = " ".join((by or _login_name()).split())
    if not by or len(by) > LONGEST_NAME:
        raise click.UsageError(f"--as takes a name of up to {LONGEST_NAME} characters")
    return by


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container whose user has no name
        return ""


def _row(view: ParkedCallView) -> tuple[str, ...]:
    about = view.about
    needs = f" ({len(view.approvals)} of {view.needs})" if view.needs > 1 else ""
    return (
        view.id,
        _REASONS.get(view.reason, view.reason),
        f"{about.get('server', '')}.{about.get('tool', '')}",
        (_questions(view) or str(about.get("arguments", "")))[:_SHORT_CHARS],
        describe_sender(about.get("principal", ""), about.get("agent_id", "")),
        local_time(view.until),
        view.message[:_SHORT_CHARS] if view.reason == TASK else ", ".join(view.approvals) + needs,
    )


def _questions(view: ParkedCallView) -> str:
    questions: list[dict[str, Any]] = view.about.get("questions", [])
    return "; ".join(str(each.get("message", "")) for each in questions)


def _as_json(view: ParkedCallView) -> dict[str, Any]:
    about = view.about
    return {
        "id": view.id,
        "reason": view.reason,
        "tool": f"{about.get('server', '')}.{about.get('tool', '')}",
        **{name: about.get(name, "") for name in ("title", "arguments", "agent_id", "run_id", "principal")},
        "asked_at": local_time(float(about.get("at", 0)), "T"),
        "expires_at": local_time(view.until, "T"),
        "questions": about.get("questions", []),
        "digest": view.digest,
        "approvers": view.needs,
        "approved_by": list(view.approvals),
        **({"message": view.message} if view.reason == TASK else {}),
    }

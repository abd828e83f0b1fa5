"""`tarsy-tasks policy`: what the policy says, and what would happen to a call."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import click

from tarsy_tasks.cli import FAILED
from tarsy_tasks.cli.call import parse_words
from tarsy_tasks.cli.known_names import complete_tool, known_names
from tarsy_tasks.cli.output import json_option, notes, print_json, print_table
from tarsy_tasks.errors import ArgumentsError, ToolNameError
from tarsy_tasks.policy import Denial, Limit, Policy, find_idle_patterns, load_policy

__all__ = ["policy"]

_ANONYMOUS = "anonymous"
_NONE = "no policy: every call is permitted"


@click.group()
def policy() -> None:
    """Show the policy, or what it says about a call."""


@policy.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--agent",
    default=_ANONYMOUS,
    show_default=True,
    help="Who calls: a user of Redis, or a certificate's subject.",
)
@click.argument("name", metavar="SERVER.TOOL", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1)
@json_option
def check(name: str, arguments: tuple[str, ...], agent: str, *, as_json: bool) -> None:
    """Say what would happen to a call, and which rule says so. Nothing is sent.

    ARGUMENTS are as for `tarsy-tasks call`; without them only the tool is checked, and the rules that its arguments
    would have to fit are named. Exit codes: 0 permitted, 1 denied, 2 wrong usage, configuration or policy.
    """
    found = load_policy()
    if found is None:
        if as_json:
            print_json({"permitted": True, "policy": None})
        else:
            click.echo(_NONE)
        return
    seen = known_names()
    server, tool = _resolve(name, seen)
    decision = found.decide(agent, server, tool)
    given = _read_arguments(arguments)
    denial = decision.denial
    if denial is None and given is not None:
        denial = found.check_arguments(agent, server, tool, given)
    applied = found.limits.of(agent, server, tool) if found.limits is not None and denial is None else None
    limits = list(applied.limits.values()) if applied is not None else []
    denial = denial or found.deny_by_limit(agent, server, tool)
    if as_json:
        print_json(
            {
                "permitted": denial is None,
                "agent": agent,
                "entry": found.entry_of(agent),
                "server": server,
                "tool": tool,
                "denial": asdict(denial) if denial is not None else None,
                "grounds": decision.grounds,
                "argument_rules": decision.argument_rules,
                "limits": [_as_json(limit) for limit in limits],
                "policy": found.version,
            }
        )
    else:
        _print(found, agent, denial, decision.grounds, () if given is not None else decision.argument_rules)
        for limit in limits if denial is None else ():
            waits = ", and waits when over it" if limit.rule.when_over == "wait" else ""
            click.echo(
                f"within {limit.place}: {limit.rule.terms}, counted as {limit.counter(agent, server, tool)}{waits}"
            )
    if (
        decision.denial is not None
        and found.deny_name(agent, server, tool) is None
        and tool not in seen.get(server, ())
    ):
        line = "if this is a shortened function name, check the tool that it stands for, by its own name"
        notes.print(f"warning: {line}", style="yellow")
    for line in find_idle_patterns(found.rules, seen):
        notes.print(f"warning: {line}", style="yellow")
    if denial is not None:
        raise click.exceptions.Exit(FAILED)


def _print(
    found: Policy, agent: str, denial: Denial | None, grounds: tuple[str, ...], argument_rules: tuple[str, ...]
) -> None:
    click.echo(f"policy {found.version} of {found.source}, agent {agent}: entry {found.entry_of(agent) or 'none'}")
    if denial is not None:
        click.echo(f"denied by {denial.rule}: {denial.why}")
        click.echo(f"the model reads: {denial.text}")
        return
    click.echo(f"permitted by {', '.join(grounds) or 'the absence of rules'}")
    for place in argument_rules:
        click.echo(f"if its arguments fit {place}: {found.argument_rule(place).text}")


def _as_json(limit: Limit) -> dict[str, Any]:
    return {"rule": limit.place, "permits": limit.rule.terms, **limit.rule.model_dump(mode="json", exclude_none=True)}


def _resolve(name: str, seen: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """The server and the tool; of a shortened function name the tool that it stands for, if its server's were seen."""
    from tarsy_tasks.agent.selection import find_servers
    from tarsy_tasks.tool_names import is_shortened, resolve_server, resolve_tool_name

    if is_shortened(name):
        with suppress(ToolNameError):
            return resolve_tool_name(name, seen)
    try:
        servers = find_servers(None)
        return resolve_server(name, [name.partition(".")[0]] if servers is None else servers)
    except ToolNameError as error:
        raise click.UsageError(str(error)) from None


def _read_arguments(words: tuple[str, ...]) -> dict[str, Any] | None:
    from tarsy_tasks.arguments import parse_arguments

    given = parse_words(words)
    if not isinstance(given, str):
        return given
    try:
        return parse_arguments(given)
    except ArgumentsError as error:
        raise click.UsageError(str(error)) from None


@policy.command()
@click.option("--agent", help="Only what holds for this agent.")
@json_option
def show(agent: str | None, *, as_json: bool) -> None:
    """Show the policy and its version. Exit codes: 0 success, 2 the policy or the configuration is wrong."""
    found = load_policy()
    if found is None:
        if as_json:
            print_json({"version": None})
        else:
            click.echo(_NONE)
        return
    rules = found.rules
    agents = rules.agents
    if agent is not None:
        entry = found.entry_of(agent)
        if entry is None and agents:
            notes.print(f"{agent}: differs only in case from an entry, so nothing is permitted to it", style="yellow")
        agents = {entry: agents[entry]} if entry is not None else {}
    if as_json:
        shown = rules.model_copy(update={"agents": agents}).model_dump(mode="json")
        print_json({"version": found.version, "source": found.source, "policy": shown})
        return
    click.echo(f"policy {found.version} of {found.source}")
    rows = [
        (name, _join(each.capabilities), _join(each.allow), _join(each.deny), f"{each.weight:g}")
        for name, each in agents.items()
    ]
    print_table(("agent", "capabilities", "allow", "deny", "weight"), rows, nothing="no rules for agents")
    servers = [
        (
            name,
            _join(each.allow),
            _join(each.deny),
            "; ".join(f"{pattern}: {_join(needs.required_capabilities)}" for pattern, needs in each.tools.items()),
        )
        for name, each in rules.servers.items()
    ]
    if servers:
        print_table(("server", "allow", "deny", "required capabilities"), servers)
    arguments = [
        (f"arguments[{index}]", _join(rule.agents), _join(rule.tools), rule.text)
        for index, rule in enumerate(rules.arguments)
    ]
    if arguments:
        print_table(("rule", "agents", "tools", "text"), arguments)
    limits = [
        (limit.place, _join(rule.agents), _join(rule.tools), _join([*rule.each]), rule.terms, rule.when_over)
        for limit in (found.limits.all if found.limits is not None else ())
        for rule in [limit.rule]
    ]
    if limits:
        print_table(("limit", "agents", "tools", "each", "permits", "over it"), limits)


def _join(words: list[str]) -> str:
    return ", ".join(words) or "none"

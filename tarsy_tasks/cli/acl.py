"""`tarsy-tasks acl`: the users that Redis should have, each with only the rights that it needs."""

import os

import click

from tarsy_tasks.broker.acl import ALL_SERVERS, AgentUser, build_users, password_variable, render_users
from tarsy_tasks.cli.output import notes

__all__ = ["acl"]


@click.command()
@click.option(
    "--agent",
    "agents",
    metavar="NAME=SERVER,…",
    multiple=True,
    help=f"A user for agents and the servers that it may call ({ALL_SERVERS}: all). Default: agent={ALL_SERVERS}.",
)
@click.option("--database", default=0, show_default=True, type=click.IntRange(0), help="Redis database number.")
def acl(agents: tuple[str, ...], database: int) -> None:
    """Print an ACL file for Redis: users for agents, worker, beat, flower, operator and admin.

    Passwords come from TARSY_ACL_WORKER, TARSY_ACL_BEAT and so on, or from the files named by TARSY_ACL_WORKER_FILE and
    so on. Only their digests are printed. A user without a password is printed as off.
    """
    users = build_users(map(_parse_agent, agents or (f"agent={ALL_SERVERS}",)), database)
    passwords = {name: password for name in users if name != "default" and (password := _password_of(name))}
    click.echo(render_users(users, passwords), nl=False)
    if off := [name for name in users if name != "default" and name not in passwords]:
        notes.print(f"without a password, and therefore off: {', '.join(off)}", style="yellow")


def _parse_agent(text: str) -> AgentUser:
    name, equals, servers = text.partition("=")
    if not equals or not all(servers.split(",")):
        raise click.UsageError(f"--agent {text}: use NAME=SERVER,SERVER or NAME={ALL_SERVERS}")
    return AgentUser(name, tuple(servers.split(",")))


def _password_of(user: str) -> str | None:
    name = password_variable(user)
    path = os.environ.get(f"{name}_FILE")
    if not path:
        return os.environ.get(name)
    try:
        with click.open_file(path) as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{name}_FILE: {path} cannot be read: {error}") from None

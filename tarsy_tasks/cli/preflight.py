"""`tarsy-tasks preflight`: is all there that a run needs? By exit code, for a pipeline or a scheduler."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click
from redis.exceptions import RedisError

import tarsy_tasks
from tarsy_tasks.cli import FAILED, OK, UNAVAILABLE
from tarsy_tasks.cli.known_names import complete_tool
from tarsy_tasks.cli.output import busy, json_option, print_json, print_table
from tarsy_tasks.doctor.preflight import Need, Verdict, check_needs, check_servers, judge_redis_error
from tarsy_tasks.errors import ConfigError, ToolNameError
from tarsy_tasks.policy import load_policy
from tarsy_tasks.tool_names import resolve_server

__all__ = ["preflight"]

_REDIS_S = 5.0


@click.command()
@click.argument("names", metavar="[SERVER.TOOL]...", nargs=-1, shell_complete=complete_tool)
@click.option(
    "--agent", help="Who will call: a user of Redis. Default: that of TARSY_REDIS_URL, or anonymous if it is shared."
)
@json_option
def preflight(names: tuple[str, ...], agent: str | None, *, as_json: bool) -> None:
    """Check that all is there that a run needs, before it begins: Redis, a worker for each server, servers that work,
    and tools that are listed and permitted.

    It reads the configuration, the policy and Redis, and calls nothing. SERVER.TOOL are the tools that the run needs; a
    server alone stands for itself. Without any, all enabled servers that are required are checked.

    Exit codes: 0 fine; 3 something is missing that comes back by itself, so try again later; 1 somebody has to act, as
    also 2, wrong usage or configuration.
    """
    with busy("reading Redis"):
        needs = list(_find_needs(names, agent))
    verdicts = {need.verdict for need in needs}
    if as_json:
        print_json({"ok": verdicts <= {Verdict.FINE}, "needs": list(map(asdict, needs))})
    else:
        rows = [(need.name, need.verdict, need.text, need.remedy or "") for need in needs]
        print_table(("needed", "verdict", "found", "remedy"), rows, nothing="no MCP server is required")
    code = FAILED if Verdict.ACT in verdicts else UNAVAILABLE if Verdict.RETRY in verdicts else OK
    raise click.exceptions.Exit(code)


def _find_needs(names: tuple[str, ...], agent: str | None) -> Iterator[Need]:
    from tarsy_tasks.celery_app import bound_agent
    from tarsy_tasks.interceptors import ANONYMOUS

    app = tarsy_tasks.app
    enabled = app.mcp_config.enabled_servers
    policy = load_policy()
    wanted: dict[str, Any] = {} if names else {name: each for name, each in enabled.items() if each.required}
    known: list[str] = []
    for name in names:
        try:
            server = name if name in enabled else resolve_server(name, enabled)[0]
        except ToolNameError as error:
            yield Need(name, Verdict.ACT, str(error), "correct the name, or configure and enable the server")
            continue
        wanted[server] = enabled[server]
        known.append(name)
    try:
        # A timeout of its own: the caller's must not come first.
        redis = app.backend.build_client(_REDIS_S)
        redis.ping()
        yield Need("redis", Verdict.FINE, "answers")
        found = list(check_servers(redis, wanted)) if wanted else []
        yield from found
        yield from check_needs(redis, wanted, known, policy, agent or bound_agent(app) or ANONYMOUS)
    except (RedisError, OSError) as error:
        yield judge_redis_error(error)
    except ConfigError as error:
        yield Need("configuration", Verdict.ACT, str(error), "correct it")

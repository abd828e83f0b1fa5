"""Is all there that a run needs: Redis, workers, MCP servers that work, tools that may be called?

Owns the verdicts. It reads configuration, policy and Redis, in a few round trips, and calls nothing. What is wrong is
of two kinds: what passes by itself, so that the run may be tried again later, and what somebody has to do something
about.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tarsy_tasks.broker.fleet import serving_workers
from tarsy_tasks.catalogue import ListedServer, read_catalogue
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import ToolNameError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.health_records import HealthStatus, ServerHealth, read_health
from tarsy_tasks.tool_names import resolve_tool_name

if TYPE_CHECKING:
    from tarsy_tasks.policy import Policy

__all__ = ["Need", "Verdict", "check_needs", "check_servers", "judge_redis_error"]

_PERMANENT = frozenset({ErrorCode.SERVER_MISCONFIGURED, ErrorCode.SERVER_REFUSED})
"""Why a server does not work, if it does not work again by itself."""
_START = "start a worker that serves it, or look into the log of the one that should"


class Verdict(StrEnum):
    """What is to be done about something that a run needs."""

    FINE = "fine"
    RETRY = "retry later"
    ACT = "act"


@dataclass(frozen=True)
class Need:
    """Something that a run needs.

    Attributes:
        name: `redis`, the id of a server, or `server.tool`.
        text: What was found.
        remedy: What somebody has to do; None if nobody has to.
    """

    name: str
    verdict: Verdict
    text: str
    remedy: str | None = None


def judge_redis_error(error: Exception) -> Need:
    """What it means that Redis could not be asked."""
    from redis.exceptions import AuthenticationError, NoPermissionError

    if isinstance(error, (AuthenticationError, NoPermissionError)):
        remedy = "correct the user and the password in TARSY_REDIS_URL, or the ACL rules (`tarsy-tasks acl`)"
        return Need("redis", Verdict.ACT, f"it refuses this user: {error}", remedy)
    return Need("redis", Verdict.RETRY, f"it could not be reached: {error}")


def check_servers(redis: Any, servers: Mapping[str, ServerConfig]) -> Iterator[Need]:
    """Whether each server has a worker, and works.

    Args:
        redis: A redis-py client of the workers' database.
    """
    serving = serving_workers(redis, servers)
    for name, health in read_health(redis, servers).items():
        yield _judge(health, serving[name])


def check_needs(
    redis: Any, servers: Mapping[str, ServerConfig], names: Iterable[str], policy: "Policy | None", agent: str
) -> Iterator[Need]:
    """Whether each tool is listed, unchanged if it has to be, and permitted to an agent.

    Args:
        names: In any form that a call may use; an id of a server alone asks for no tool.
        agent: Who will call, as verified.
    """
    listed = read_catalogue(redis, servers)
    known = {name: [tool.tool for tool in each.listing.tools] for name, each in listed.items()}
    for name in names:
        if name not in servers:
            yield _check_tool(name, servers, listed, known, policy, agent)


def _judge(health: ServerHealth, workers: Sequence[str]) -> Need:
    name, reports = health.server, list(health.workers.values())
    if not workers:
        if reports:
            return Need(name, Verdict.RETRY, "its workers stopped in the last minute, and none serves it now")
        return Need(name, Verdict.ACT, "no worker serves it", _START)
    if health.status is HealthStatus.HEALTHY:
        return Need(name, Verdict.FINE, f"works; {health.tool_count} tools, {len(workers)} workers")
    if not reports:
        return Need(name, Verdict.RETRY, "its worker has not reported on it yet")
    if any(report.healthy for report in reports):
        return Need(name, Verdict.FINE, f"can be called, but is {health.status}: {health.reason}")
    if any(report.is_held for report in reports):
        remedy = f"connect it again: `celery -A tarsy_tasks control mcp_reconnect {name}`"
        return Need(name, Verdict.ACT, f"an operator has disconnected it: {health.reason}", remedy)
    waits = any(report.is_restarting or report.longer_attempt_s is not None for report in reports)
    if not waits and all(report.error_code in _PERMANENT for report in reports):
        return Need(name, Verdict.ACT, health.reason, "correct its entry in the configuration, or its credentials")
    return Need(name, Verdict.RETRY, f"it does not work now: {health.reason}")


def _check_tool(
    name: str,
    servers: Mapping[str, ServerConfig],
    listed: Mapping[str, ListedServer],
    known: Mapping[str, Sequence[str]],
    policy: "Policy | None",
    agent: str,
) -> Need:
    try:
        server, tool = resolve_tool_name(name, {each: known.get(each, ()) for each in servers})
    except ToolNameError as error:
        unlisted = [each for each in servers if each not in known and name.startswith(each)]
        if error.code is ErrorCode.UNKNOWN_TOOL and unlisted:
            return Need(name, Verdict.RETRY, f"the tools of {unlisted[0]} were never listed; a worker lists them")
        remedy = "correct the name, or install a version of the server that has the tool"
        return Need(name, Verdict.ACT, str(error), remedy)
    full_name = f"{server}.{tool}"
    if servers[server].pin == "block" and tool in listed[server].diff.changed:
        remedy = f"look at `tarsy-tasks tools diff {server}`, then `tarsy-tasks tools approve {full_name}`"
        return Need(full_name, Verdict.ACT, "its definition has changed, and calls of it are blocked", remedy)
    denial = policy.decide(agent, server, tool).denial if policy is not None else None
    if denial is not None:
        remedy = "call it as another agent, or change the policy"
        return Need(full_name, Verdict.ACT, f"the policy denies it to {agent} ({denial.rule}): {denial.why}", remedy)
    return Need(full_name, Verdict.FINE, "is listed and permitted")

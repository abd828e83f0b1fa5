"""The rules of the users that Redis has: do they enforce who an agent is, and are they those of this version?

Owns what each user is tried with (`ACL DRYRUN`, which executes nothing, and which only administrators may). What the
rules should be is in `broker.acl`.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import PARTS
from tarsy_tasks.broker.principals import is_agent_name
from tarsy_tasks.broker.priority_lists import list_of
from tarsy_tasks.broker.session_directory import session_name_of
from tarsy_tasks.doctor.finding import Finding, name_some

__all__ = ["check_rules"]

_WORKER = "worker"
_REMEDY = "load the rules that `tarsy-tasks acl` prints"
_OTHER = "another-agent"
"""Stands for any agent but the one whose rules are tried."""
_MOST_OTHERS = 10

_Command = tuple[str, ...]


def check_rules(redis: Any, users: Collection[str], servers: Collection[str]) -> Iterator[Finding]:
    """Try the rules of users.

    Args:
        users: All that Redis has.
        servers: Those that are configured.
    """
    try:
        redis.execute_command("ACL", "DRYRUN", _WORKER if _WORKER in users else next(iter(users)), "PING")
    except ResponseError:
        return  # not for this user, or not in this Redis
    posing: list[str] = []
    counting: list[str] = []
    older: list[str] = []
    for name in sorted(set(users) - {*PARTS}):
        if any(_try(redis, name, _posing(name, users, servers))):
            posing.append(name)
        if any(_try(redis, name, _COUNTED)):
            counting.append(name)
        if is_agent_name(name) and any(_lacks_rules(redis, name, server) for server in servers):
            older.append(name)
    if posing:
        text = (
            "these users of Redis may write into the queues of other agents, so entries of single agents are advice "
            f"only: {name_some(posing)}"
        )
        yield Finding.error("policy", text, f"{_REMEDY}, and switch off users that nobody needs (`default`)")
    if counting:
        text = f"these users of Redis may change what limits, shares and error budgets count: {name_some(counting)}"
        yield Finding.error("policy", text, _REMEDY)
    if older:
        names = name_some(older)
        text = (
            f"these agents have rules of an earlier version, without priorities, events or isolated sessions: {names}"
        )
        yield Finding.warning("policy", text, _REMEDY)
    if _WORKER in users and (missing := _find_missing(redis)):
        text = f"`{_WORKER}` has rules of an earlier version, without what it needs for: {', '.join(missing)}"
        yield Finding.error("policy", text, _REMEDY)


def _posing(name: str, users: Iterable[str], servers: Iterable[str]) -> Iterator[_Command]:
    """What would make a call of this user one of somebody else."""
    others = [each for each in users if each != name and is_agent_name(each)][:_MOST_OTHERS]
    for server in servers:
        for other in (*others, _OTHER):
            yield "LPUSH", keys.agent_queue(server, other), ""
            yield "LPUSH", list_of(keys.agent_queue(server, other), "interactive"), ""
        if is_agent_name(name):
            yield "LPUSH", keys.queue(server), ""


_COUNTED: tuple[_Command, ...] = (
    ("ZADD", keys.limit_key("0:rate"), "0", ""),
    ("DEL", keys.limit_key("0:rate")),
    ("SET", keys.LIMIT_REPORT, ""),
    ("ZADD", keys.shares_key("0"), "0", ""),
    ("HSET", keys.error_budget_key("0"), "", ""),
)
_NEEDED: dict[str, tuple[_Command, ...]] = {
    "the queues of agents": (
        ("SPOP", keys.agents_key("0"), "1"),
        ("SADD", keys.agents_key("0"), ""),
        ("ZADD", keys.shares_key("0"), "0", ""),
    ),
    "limits": (
        ("ZADD", keys.limit_key("0:rate"), "0", ""),
        ("ZINCRBY", keys.limit_key("0:calls:0"), "1", ""),
        ("ZLEXCOUNT", keys.limit_key("0:held"), "-", "+"),
        ("ZRANDMEMBER", keys.limit_key("0:held"), "2"),
        ("ZREMRANGEBYSCORE", keys.limit_key("0:rate"), "0", "0"),
        ("SET", keys.LIMIT_REPORT, ""),
    ),
    "error budgets": (
        ("HGETALL", keys.error_budget_key("0")),
        ("HINCRBY", keys.error_budget_key("0"), "", "1"),
        ("TYPE", keys.error_budget_key("0")),
    ),
    "events of calls": (
        ("PUBLISH", keys.events_channel("0", ""), ""),
        ("SET", keys.call_state_key("0", ""), ""),
    ),
}


def _lacks_rules(redis: Any, name: str, server: str) -> bool:
    queue = keys.agent_queue(server, name)
    if not any(_try(redis, name, [("LPUSH", queue, "")])):
        return False  # it may not call this server
    needed: list[_Command] = [
        ("SADD", keys.agents_key(server), name),
        ("SADD", keys.quiet_agents_key(server), name),
        ("SET", keys.wake_key(server, "0"), "1"),
        ("HMGET", keys.session_key(session_name_of(server, name, "")), "holder"),
        ("ZSCORE", keys.WORKERS, ""),
        ("LPUSH", list_of(queue, "interactive"), ""),
        ("LPUSH", list_of(queue, "batch"), ""),
        ("SUBSCRIBE", keys.events_channel("0", name)),
    ]
    return not all(_try(redis, name, needed))


def _find_missing(redis: Any) -> list[str]:
    return [what for what, commands in _NEEDED.items() if not all(_try(redis, _WORKER, commands))]


def _try(redis: Any, user: str, commands: Iterable[_Command]) -> list[bool]:
    """Which of the commands a user may execute."""
    with redis.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command("ACL", "DRYRUN", user, *command)
        return [reply == b"OK" for reply in pipeline.execute(raise_on_error=False)]

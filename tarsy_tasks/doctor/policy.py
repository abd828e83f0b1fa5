"""The policy: is it valid, and for whom can it be enforced?

A rule about an agent is enforced only where the agent is verified: by its own user of Redis, or by signed messages.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from redis.exceptions import ResponseError

from tarsy_tasks.broker.binding import Binding
from tarsy_tasks.broker.principals import is_agent_name
from tarsy_tasks.doctor.finding import Finding, name_some
from tarsy_tasks.doctor.rights import check_rules
from tarsy_tasks.entry_point import load_celeryconfig
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.file_rights import find_rights
from tarsy_tasks.interceptors import ANONYMOUS
from tarsy_tasks.policy import Policy, load_policy
from tarsy_tasks.settings import load_settings

__all__ = ["check_policy", "check_users"]

_EVERYONE = "*"


def check_policy() -> tuple[Policy | None, list[Finding]]:
    """Check the policy that a worker would read here; None if there is none, or it cannot be read."""
    try:
        policy = load_policy()
    except ConfigError as error:
        return None, [Finding.error("policy", str(error), "correct it; no worker starts with it")]
    if policy is None:
        text = "there is none: every agent may call every tool of the servers whose queues it may write into"
        return None, [Finding.note("policy", text, "write one, if agents may not do the same (docs/policy.md)")]
    found = [Finding.ok("policy", f"{policy.source}: version {policy.version}")]
    own_file = load_settings().policy
    return policy, [*found, *(_check_file(own_file) if own_file is not None else ()), *_check_quotas(policy)]


def _check_file(path: Path) -> Iterator[Finding]:
    rights = find_rights(path)
    if rights.can_write:
        text = f"{path}: every user of this machine can write it, and so permit every call"
        yield Finding.error("policy", text, f"chmod o-w {path}")
    elif rights.other_owner is not None:
        text = f"{path} belongs to another user of this machine (uid {rights.other_owner}), who can permit every call"
        yield Finding.warning("policy", text, "let it belong to root, or to the user of the workers")


def _check_quotas(policy: Policy) -> Iterator[Finding]:
    limits = policy.limits.all if policy.limits is not None else ()
    counted = [limit.place for limit in limits if limit.rule.bytes_per_day]
    try:
        settings = load_celeryconfig(Path.cwd()) if counted else {}
    except ConfigError:
        return  # which is another finding
    url = load_settings().redis_url.get_secret_value()
    if settings.get("result_backend", url) != settings.get("broker_url", url):
        text = f"the bytes of results are not counted, because they are in another database: {name_some(counted)}"
        yield Finding.warning("policy", text, "remove result_backend from celeryconfig.py, or the quotas of bytes")


def check_users(policy: Policy, redis: Any, binding: Binding, servers: Collection[str] = ()) -> Iterator[Finding]:
    """Check which entries of agents can be enforced, by the users that Redis has and their rules.

    Args:
        servers: Those that are configured.
    """
    named = [name for name in policy.rules.agents if name not in (_EVERYONE, ANONYMOUS)]
    entry = ANONYMOUS if ANONYMOUS in policy.rules.agents else _EVERYONE
    by_agent = _limits_by_agent(policy)
    if not binding.is_bound:
        if by_agent:
            text = (
                f"agents are not bound, because {binding.reason}: these limits, which tell agents apart, count all of "
                f"them as `anonymous`, apart from signed calls: {name_some(by_agent)}"
            )
            yield Finding.warning("policy", text, "give each agent a user of Redis (`tarsy-tasks acl`)")
        apart = " apart from signed ones" if named else ""
        text = f"agents are not bound, because {binding.reason}: all calls{apart} are `anonymous`"
        if named:
            remedy = "give each agent a user of Redis (`tarsy-tasks acl`), or have agents sign their messages"
            yield Finding.warning("policy", f"{text}, so these entries are advice only: {name_some(named)}", remedy)
        else:
            yield Finding.ok("policy", f"{text}; the rules that hold for all agents are enforced")
        return
    try:
        users = {name.decode(errors="replace") for name in redis.execute_command("ACL", "USERS")}
    except ResponseError:
        text = "this user of Redis may not list users (ACL USERS), so entries of agents were not compared with them"
        yield Finding.note("policy", text, "set TARSY_REDIS_URL to `admin`, only for this check")
        return
    agents = {name for name in users if is_agent_name(name)}
    if absent := [name for name in named if name not in agents]:
        text = f"these agents have no user of Redis, so only signed messages can be theirs: {name_some(absent)}"
        yield Finding.warning("policy", text, "correct the names, or create the users (`tarsy-tasks acl`)")
    if others := sorted(agents - set(named)):
        yield Finding.note("policy", f"these agents have no entry, so `{_EVERYONE}` decides: {name_some(others)}")
    enforced = name_some(sorted(agents & set(named))) or "none"
    yield Finding.ok("policy", f"enforced by users of Redis for: {enforced}; all others are `{entry}`")
    text = "it protects calls only: every agent may read names, descriptions and schemas of all tools in Redis"
    yield Finding.note("policy", text, "write no secrets into the descriptions of tools (docs/threat-model.md)")
    yield from check_rules(redis, users, servers)


def _limits_by_agent(policy: Policy) -> list[str]:
    """The places of the limits that depend on who calls."""
    limits = policy.limits.all if policy.limits is not None else ()
    return [limit.place for limit in limits if "agent" in limit.rule.each or _EVERYONE not in limit.rule.agents]

"""What a bound agent may do with each key and channel of the package: none is open to it because it was forgotten."""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.config.record import CONFIGURATION_KEY
from tests.docs.blocks import DOCS
from tests.redis_users import url_of
from tests.valkey import Valkey

COMMANDS = (
    *("GET", "STRLEN", "GETRANGE 0 1", "EXISTS", "TYPE", "TTL", "DUMP", "MGET"),
    *("HGET f", "HGETALL", "HKEYS", "HSCAN 0", "HEXISTS f", "HMGET f", "HRANDFIELD"),
    *("LRANGE 0 -1", "LLEN", "LPOS x", "LINDEX 0"),
    *("SMEMBERS", "SISMEMBER x", "SRANDMEMBER", "SSCAN 0", "ZRANGE 0 -1", "ZSCORE x", "ZCARD", "ZSCAN 0"),
    *("XRANGE - +", "XLEN", "XREVRANGE + -"),
    *("SET x", "SETRANGE 0 x", "APPEND x", "INCR", "DEL", "UNLINK", "EXPIRE 0", "PERSIST", "RENAME x", "COPY x"),
    *("HSET f x", "HSETNX f x", "HDEL f", "HINCRBY f 1", "LPUSH x", "RPUSH x", "LPOP", "RPOP", "LREM 0 x", "LTRIM 0 0"),
    *("SADD x", "SREM x", "SPOP", "ZADD 1 x", "ZREM x", "ZINCRBY 1 x", "ZPOPMIN", "ZREMRANGEBYRANK 0 -1"),
    *("XADD * f x", "XDEL 1-1", "XTRIM MAXLEN 0", "RESTORE 0 x", "GETDEL"),
)
ITS_OWN = {
    # to send calls and to withdraw them, no matter who sent them: ids are random
    keys.UNACKED: {"HSETNX f x", "HGET f", "HDEL f", "HEXISTS f"},
    keys.QUEUES: {"ZADD 1 x"},
    keys.DELAYED: {"ZREM x"},
    keys.call_marker("x"): {"HGET f", "HEXISTS f", "EXISTS"},
    keys.withdrawn_key("x"): {"SET x", "HGET f", "HEXISTS f", "EXISTS"},
    keys.cancelled_key("x"): {"SET x", "HGET f", "HEXISTS f", "EXISTS"},
    keys.agents_key("desk"): {"SADD x"},
    # to find the workers that hold its isolated sessions, and to wake them
    keys.session_key("desk:sre:x"): {"HMGET f"},
    keys.WORKERS: {"ZSCORE x"},
    keys.SWEEPS: {"HMGET f"},
    keys.quiet_agents_key("desk"): {"SADD x"},
    keys.wake_key("desk", "x"): {"SET x"},
    keys.idempotency_key("sre", "x"): {"SET x", "GET", "DEL"},
    keys.waiting_key("mcp.desk:a:sre"): {"ZADD 1 x", "ZREM x"},
    "mcp.desk:a:sre": {"LPUSH x", "LREM 0 x", "LLEN"},
    # answers, and what belongs to them
    keys.result_key("x"): {"GET", "MGET"},
    keys.large_result_key("sre", "x"): {"GETRANGE 0 1"},
    keys.call_state_key("x", "sre"): {"GET", "MGET"},
    keys.watch_key("sre", "x"): {"EXPIRE 0", "DEL"},
    # which servers there are, if that is in Redis
    CONFIGURATION_KEY: {"HGET f"},
    # claims about calls that no worker took
    keys.AGENT_AUDIT: {"XADD * f x", "EXPIRE 0"},
}
HEALTH_AND_TOOLS = (
    *("tarsy:health:desk", "tarsy:worker-health:x", "tarsy:health-workers", "tarsy:tools:desk"),
    *("tarsy:tool-revisions", "tarsy:approved-tools:desk", "tarsy:serving:desk", "tarsy:serving:desk.suspended"),
)
ALLOWED = ITS_OWN | {key: {"GET", "MGET", "HGET f", "HMGET f", "HGETALL", "ZRANGE 0 -1"} for key in HEALTH_AND_TOOLS}
NAMES = {
    "server": ("desk",),
    "agent": ("sre", "dev", ""),
    "owner": ("sre", "dev", ":sre"),
    "queue": ("mcp.desk:a:sre", "mcp.desk:a:dev", "mcp.desk"),
}
"""What may stand for the names in the keys of the page of messages; for all others `x`."""
OF_OTHERS = (
    "mcp.desk",
    "mcp.desk:a:dev",
    "mcp.desk:w:x",
    "mcp.desk:a:dev:w:x",
    "mcp.desk:a:sre:w:x",
    "mcp.vault:a:sre",
    "mcp.desk.check",
)
CHANNELS = {
    *(keys.events_channel("x", "sre"), keys.reply_channel("x", "sre"), keys.SERVER_EVENTS, keys.result_key("x")),
}
CHANNELS_OF_OTHERS = (
    *(keys.events_channel("x", "dev"), keys.events_channel("x", "")),
    *(keys.reply_channel("x", "dev"), keys.reply_channel("x", ""), "/0.celery.pidbox", "/0.celeryev/task.multi"),
)


@pytest.fixture(scope="module")
def admin() -> Iterator[Any]:
    with (
        Valkey(agents=(AgentUser("sre", ("desk",)), AgentUser("dev", ("desk", "vault")))) as valkey,
        redis.Redis.from_url(url_of(valkey.port)) as client,
    ):
        yield client


def documented_keys() -> set[str]:
    """Those of the page of messages, on which a test demands every key."""
    section = (DOCS / "protocol.md").read_text().partition("\n## Keys in Redis\n")[2]
    cells = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    found: set[str] = set()
    for key in [name for cell in cells for name in re.findall(r"`(.+?)`", cell)]:
        text, *parts = re.split(r"<([^>]*)>", key)
        for names in product(*(NAMES.get(name, ("x",)) for name in parts[::2])):
            found.add(text + "".join(f"{name}{more}" for name, more in zip(names, parts[1::2], strict=True)))
    return found


def dry_run(admin: Any, commands: list[tuple[str, ...]]) -> list[bool]:
    with admin.pipeline(transaction=False) as pipeline:
        for words in commands:
            pipeline.execute_command("ACL", "DRYRUN", "sre", *words)
        return [each == b"OK" for each in pipeline.execute()]


def test_an_agent_may_do_with_each_key_what_is_listed_here(admin: Any) -> None:
    everything = documented_keys() | ALLOWED.keys() | {*OF_OTHERS}
    assert len(everything) > 60
    for key in everything:
        commands = [(command.split(" ")[0], key, *command.split(" ")[1:]) for command in COMMANDS]
        allowed = {each for each, is_allowed in zip(COMMANDS, dry_run(admin, commands), strict=True) if is_allowed}
        assert allowed == ALLOWED.get(key, set()), key


def test_an_agent_hears_only_what_is_its_own(admin: Any) -> None:
    channels = [*CHANNELS, *CHANNELS_OF_OTHERS]
    heard = dry_run(admin, [("SUBSCRIBE", channel) for channel in channels])
    assert {channel for channel, is_heard in zip(channels, heard, strict=True) if is_heard} == CHANNELS
    assert not any(dry_run(admin, [("PUBLISH", channel, "x") for channel in channels]))
    assert not any(dry_run(admin, [("PSUBSCRIBE", f"{channel}*") for channel in channels]))


def test_agents_that_share_a_user_hear_no_bound_agent() -> None:
    task_id = "3f0c9a4e-6b1d-4b52-a1c7-2f5d8e901234"
    own, bound = keys.reply_channel(task_id, ""), keys.reply_channel(task_id, "sre")
    with Valkey(agents=(AgentUser("agent"),)) as valkey, redis.Redis.from_url(url_of(valkey.port)) as admin:
        heard = [admin.execute_command("ACL", "DRYRUN", "agent", "SUBSCRIBE", each) == b"OK" for each in (own, bound)]
    assert (own, heard) == ("tarsy:replies:3f0c9a4e-6b1d-4b52-", [True, False])

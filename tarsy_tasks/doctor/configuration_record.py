"""The configuration in Redis (`TARSY_MCP_CONFIG=redis`): is it there, and who may change it?"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from redis.exceptions import ResponseError

from tarsy_tasks.broker.binding import decide_binding
from tarsy_tasks.config.record import CONFIGURATION_KEY, ConfigurationRecord
from tarsy_tasks.doctor.finding import Finding, name_some
from tarsy_tasks.errors import BrokerUnavailable, ConfigError

__all__ = ["check_record"]

_CHECK = "configuration"
_WRITERS = ("operator", "admin")


def check_record(record: ConfigurationRecord, redis: Any, url: str) -> Iterator[Finding]:
    """Check the record of this process.

    Args:
        redis: The one that has it.
        url: Of that Redis.
    """
    try:
        version = record.read()
    except (BrokerUnavailable, ConfigError) as error:
        yield Finding.error(_CHECK, f"{error} The copy {record.path} is in use", "restore it, or the access to it")
    else:
        if version is None:
            text = f"Redis has no configuration; the copy {record.path} is in use"
            yield Finding.error(_CHECK, text, f"tarsy-tasks servers publish {record.path}, or your own file")
        else:
            at = f"{datetime.fromtimestamp(version.at, UTC):%F %T} UTC"
            text = f"in Redis: version {version.number} of {at}, by {version.who} ({version.change})"
            yield Finding.ok(_CHECK, text)
    yield from _check_writers(redis, url)


def _check_writers(redis: Any, url: str) -> Iterator[Finding]:
    remedy = "load the rules that `tarsy-tasks acl` prints, and switch off users that nobody needs (`default`)"
    power = "may change the configuration in Redis, and so which programs the workers run"
    if not decide_binding(None, [url]).is_bound:
        yield Finding.warning(_CHECK, f"the Redis URL names no user, so everybody who can reach Redis {power}", remedy)
        return
    try:
        users = [user.decode(errors="replace") for user in redis.execute_command("ACL", "USERS")]
        trial = (CONFIGURATION_KEY, "version", "")
        others = [name for name in users if name not in _WRITERS and _may(redis, name, "HSET", *trial)]
    except ResponseError:
        return  # not for this user, or not in this Redis
    if others:
        yield Finding.error(_CHECK, f"these users of Redis {power}: {name_some(others)}", remedy)


def _may(redis: Any, user: str, *command: str) -> bool:
    return redis.execute_command("ACL", "DRYRUN", user, *command) == b"OK"

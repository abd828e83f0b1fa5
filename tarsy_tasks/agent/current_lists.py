"""The lists of tools for which no worker has to be asked: those that the catalogue has as their sessions know them.

Owns the one exchange with Redis for all servers, when a list counts as current, and the lists that were parsed. A list
is current if a live worker serves the server, if all workers that report on it name that list and list it to all agents
alike, and if this user may send calls to the server. Otherwise a worker is to be asked: it connects, says why it
cannot, or leaves out what this agent may not call. Workers of earlier versions name no list, so they are always asked.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tarsy_tasks.agent.connection import AgentConnection, connection_of
from tarsy_tasks.agent.per_app import PerApp
from tarsy_tasks.agent.redis_errors import connection_errors
from tarsy_tasks.agent.waiting import seconds_until
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.fleet import ALIVE_S
from tarsy_tasks.catalogue import StoredListing
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.models import ToolListing
from tarsy_tasks.telemetry.health_records import is_fresh, parse_record

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["read_current_lists"]

_MOST_KNOWN = 1_000
"""Servers whose last lists are kept, for all executors of an application together."""

# For each server its records, and its listing unless all of them name the one that is known; or false: somebody has to
# be asked. What it may not read, and keys of another type, count as missing.
_READ = """
local function read(...)
    local found = redis.pcall(...)
    if type(found) == 'table' and found.err then return false end
    return found
end
local time = redis.call('TIME')
local workers = read('ZRANGE', KEYS[1], 0, -1) or {}
local found = {time[1], time[2]}
for i = 2, #KEYS, 2 do
    local server, queue, known = unpack(ARGV, 3 * i / 2, 3 * i / 2 + 2)
    local row = false
    local serving = read('ZRANGE', KEYS[i], '(' .. (time[1] - ARGV[2]), '+inf', 'BYSCORE', 'LIMIT', 0, 1)
    if serving and serving[1] and read('LLEN', queue) then
        local records = {}
        local is_known = known ~= ''
        for _, worker in ipairs(workers) do
            local record = read('HGET', ARGV[1] .. worker, server)
            if record then
                records[#records + 1] = record
                is_known = is_known and string.find(record, known, 1, true)
            end
        end
        if #records > 0 then row = {records, not is_known and read('HGET', KEYS[i + 1], 'listing')} end
    end
    found[#found + 1] = row
end
return found
"""

Known = OrderedDict[str, StoredListing]
"""The last list of each server."""


async def read_current_lists(
    app: "Celery", servers: Sequence[str], deadline: float, consequence: str
) -> dict[str, ToolListing]:
    """The lists of those servers for which no worker has to be asked, in one exchange.

    Args:
        deadline: Monotonic time.
        consequence: What it means that Redis could not be reached, for the error.

    Raises:
        BrokerUnavailable: Redis could not be reached until then.
    """
    connection = connection_of(app)
    await connection.replies.connect(deadline, consequence)
    if not connection.is_one_redis:
        return {}  # one exchange does not tell whether this user may send calls
    known = _known_of(app)
    try:
        async with asyncio.timeout(seconds_until(deadline)):
            [reply] = await connection.replies.redis.execute(_build_command(connection, servers, known))
    except TimeoutError:
        raise BrokerUnavailable(f"Redis did not answer in time. {consequence}") from None
    except connection_errors():
        return {}  # asking tries again, or names the reason
    return await _take(servers, reply, known)


def _build_command(connection: AgentConnection, servers: Sequence[str], known: Mapping[str, StoredListing]) -> Any:
    names = [name for server in servers for name in (keys.serving_key(server), keys.tools_key(server))]
    asked = [
        word
        for server in servers
        for word in (server, connection.queue_of(server), known[server].digest if server in known else "")
    ]
    return ("EVAL_RO", _READ, 1 + len(names), keys.HEALTH_WORKERS, *names, keys.worker_health_key(""), ALIVE_S, *asked)


async def _take(servers: Sequence[str], reply: Sequence[Any], known: Known) -> dict[str, ToolListing]:
    seconds, microseconds, *rows = reply
    now = int(seconds) + int(microseconds) / 1e6
    current: dict[str, ToolListing] = {}
    for server, row in zip(servers, rows, strict=True):
        if row is None:
            continue
        texts, listing = row
        if (stored := _parse(listing, server)) is not None:
            known[server] = stored
            await asyncio.sleep(0)  # many of them take their time, and answers to calls are waiting
        if server in known and _is_current(known[server], texts, now):
            known.move_to_end(server)
            current[server] = known[server]
    while len(known) > _MOST_KNOWN:
        known.popitem(last=False)
    return current


def _parse(text: bytes | None, server: str) -> StoredListing | None:
    """A listing that has a digest; None if there is none that this version can read."""
    if text is None:
        return None
    try:
        listing = StoredListing.model_validate_json(text)
    except ValidationError:
        return None
    return listing if listing.server == server and listing.digest else None


def _is_current(listing: StoredListing, records: Iterable[bytes], now: float) -> bool:
    """Whether all workers that report on its server name this list, and list it to all agents."""
    skipped: list[str] = []
    parsed = [parse_record(text, listing.server, "a record", skipped) for text in records]
    fresh = [record for record in parsed if record is not None and is_fresh(record, now)]
    is_named = all(record.lists_to_all and record.tools_digest == listing.digest for record in fresh)
    return bool(fresh) and is_named and not skipped


def _begin(_: "Celery") -> Known:
    return OrderedDict()


_known_of = PerApp(_begin)

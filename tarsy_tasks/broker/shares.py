"""Fair shares: the queues of bound agents, and in what order a worker takes from them.

Owns how a worker finds the agents' queues that have messages, and whose turn it is. It knows no names of agents: an
agent that publishes adds its name to a set of its server, whose change wakes the workers, or to a quiet one if it wakes
the one worker that holds the isolated session of its call. The script moves names from there, some at a time, into a
sorted set that only workers write. So what an agent adds for others, or makes up, is looked up once and dropped.

The order is that of stride scheduling: each share has a place, and the lowest is served next and then moved on by
1 / weight. A share that comes in begins at the lowest place, and one that is empty is removed only when its turn comes,
so nobody gains by being idle or by coming again. Nor does one that is over its limits: while others are served, it is
moved to their place. What others send, in the queue of the server, is one more share.
Priorities count within a share only: each call that is taken moves it on alike.
"""

from collections import Counter
from collections.abc import Mapping
from hashlib import sha1
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.fetch import declare_fetch
from tarsy_tasks.broker.principals import is_agent_name
from tarsy_tasks.broker.priority_lists import IN_LUA, lists_of, priority_of_list
from tarsy_tasks.broker.script import Script, constants
from tarsy_tasks.interceptors import ANONYMOUS
from tarsy_tasks.priorities import PRIORITIES

__all__ = ["WEIGHTS", "Waiting", "count_waiting", "declare_fair_fetch", "forget_agents"]

WEIGHTS = (0.001, 1000.0)
"""The least and the greatest weight of a share."""
_MOST_NAMES = 1000
"""So many names of a server a fetch looks up at most, of those that came in, and of shares that are empty or over their
limits: about 1 ms of Redis."""
_DIGITS, _WEIGHT_CHARS = 12, 12
_KEPT_S = 7 * 24 * 3600
_MOST_COUNTED = 2000

_HOMES = r"""
    local function is_set(name) return string.sub(name, 1, #agents_prefix) == agents_prefix end
    local function home_of(name)
        if is_set(name) then return queue_prefix .. string.sub(name, #agents_prefix + 1) end
        return string.match(name, '^(.-)\6\22') or name
    end
    """
_WEIGHT_OF = r"""
    local function weight_of(agent)
        if weights == '' then return others end
        local wanted = tonumber(string.sub(redis.sha1hex(agent), 1, digits), 16)
        local first, last = 1, #weights / width
        while first <= last do
            local middle = math.floor((first + last) / 2)
            local entry = string.sub(weights, (middle - 1) * width + 1, middle * width)
            local found = tonumber(string.sub(entry, 1, digits), 16)
            if found == wanted then return tonumber(string.sub(entry, digits + 1)) end
            if found < wanted then first = middle + 1 else last = middle - 1 end
        end
        return others
    end
    """
_SERVING = r"""
    local shared = {}
    for n, name in ipairs(names) do
        if is_set(name) then shared[homes[n]] = n end
    end
    local function is_served_with_others(n)
        return (shared[homes[n]] or n) ~= n or not shared[homes[n]] and lists[homes[n]][1] ~= names[n]
    end
    -- The lists of a share if one of them has messages. Most calls are normal: so that is looked at first.
    local function find_lists(home, agent)
        local found = agent == anonymous and lists[home] or agent_lists(home .. agent_mark .. agent)
        for _, at in ipairs({2, 1, 3, 4}) do
            local length = found[at] and redis.pcall('LLEN', found[at])
            if type(length) == 'number' and length > 0 then return found end
        end
    end
    local function read(key, command, ...)
        local found = redis.pcall(command, key, ...)
        if not found.err then return found end
        if not string.find(found.err, 'WRONGTYPE') then return error(found) end
        redis.call('DEL', key)
        return {}
    end
    local function is_name(agent)
        return #agent <= 64 and string.find(agent, '^[%w_.-]+$') and string.sub(agent, -6) ~= '.check'
    end
    local function admit(home, inbox, place)
        local lowest = read(place, 'ZRANGE', 0, 0, 'WITHSCORES')[2] or '0'
        local came = {}
        for _, set in ipairs({inbox, inbox .. ':quiet'}) do
            for _, agent in ipairs(read(set, 'SPOP', most_names)) do
                if is_name(agent) and find_lists(home, agent) then came[#came + 1] = agent end
            end
        end
        if find_lists(home, anonymous) then came[#came + 1] = anonymous end
        for _, agent in ipairs(came) do redis.call('ZADD', place, 'NX', lowest, agent) end
        redis.call('EXPIRE', place, kept_s)
    end
    -- By server: how many more shares may be looked at, those that come first and are over their limits, whether that
    -- kept any from being looked at, and the place of the last one that was served.
    local looks, over, unseen, served_at = {}, {}, {}, {}
    local function find_next(home, place)
        local before = over[home] or {}
        over[home], looks[home] = before, looks[home] or most_names
        while looks[home] > 0 do
            looks[home] = looks[home] - 1
            local agent, at = unpack(redis.call('ZRANGE', place, #before, #before, 'WITHSCORES'))
            if not agent then return end
            local found = find_lists(home, agent)
            local own = agent == anonymous and home or home .. agent_mark .. agent
            if not found then redis.call('ZREM', place, agent)
            elseif allow(own, 1) > 0 then
                served_at[home] = tonumber(at)
                return found, agent, at
            else before[#before + 1] = {agent, tonumber(at)}
            end
        end
        unseen[home] = true
    end
    -- A share that is over its limits saves up no turns: it goes on with those that are served meanwhile. If it kept
    -- others from being looked at, it has had its turn: the next fetch sees those.
    local function settle()
        for home, before in pairs(over) do
            local place = shares_prefix .. string.sub(home, #queue_prefix + 1)
            local next_at = unseen[home] and redis.call('ZRANGE', place, #before, #before, 'WITHSCORES')[2]
            for _, each in ipairs(before) do
                local agent, at = unpack(each)
                local to = next_at and next_at + 1 / weight_of(agent) or served_at[home] or at
                if to > at then redis.call('ZADD', place, 'XX', to, agent) end
            end
        end
    end
    local admitted = {}
    local function serve(n, most)
        local home = homes[n]
        if not is_set(names[n]) then return serve_lists(n, most) end
        local place = shares_prefix .. string.sub(home, #queue_prefix + 1)
        if not admitted[home] then admit(home, names[n], place) end
        admitted[home] = true
        for _ = 1, most do
            local found, agent, at = find_next(home, place)
            if not found then return false end
            local own = agent == anonymous and home or home .. agent_mark .. agent
            if not fetch_by_priority(found, own, home) then return false end
            redis.call('ZADD', place, at + 1 / weight_of(agent), agent)
        end
        return true
    end
    """
_COUNT = (
    constants(
        agents_prefix=keys.agents_key(""),
        shares_prefix=keys.shares_key(""),
        queue_prefix=keys.QUEUE_PREFIX,
        agent_mark=keys.AGENT_MARK,
        anonymous=ANONYMOUS,
        most=_MOST_COUNTED,
    )
    + IN_LUA
    + r"""
    -- Of the queues KEYS, how much of each rank waits, with that of their agents; 0 in a key that is not a list.
    local lengths = {}
    local function add(i, queue)
        local found = agent_lists(queue)
        found[4] = not string.find(queue, agent_mark, 1, true) and queue .. '\6\0229' or nil
        for _, name in ipairs(found) do
            local length, rank = redis.pcall('LLEN', name), rank_of(name)
            if type(length) == 'number' then lengths[i][rank] = lengths[i][rank] + length end
        end
    end
    for i, queue in ipairs(KEYS) do
        local server, seen = string.sub(queue, #queue_prefix + 1), {}
        lengths[i] = {0, 0, 0}
        add(i, queue)
        local shares = redis.pcall('ZRANGE', shares_prefix .. server, 0, most - 1)
        local came = redis.pcall('SRANDMEMBER', agents_prefix .. server, most)
        local quiet = redis.pcall('SRANDMEMBER', agents_prefix .. server .. ':quiet', most)
        for _, agents in ipairs({shares, came, quiet}) do
            for _, agent in ipairs(agents) do
                if not seen[agent] and agent ~= anonymous then add(i, queue .. agent_mark .. agent) end
                seen[agent] = true
            end
        end
    end
    return lengths
    """
)


def declare_fair_fetch(weights: Mapping[str, float], limiting: str = "") -> Script[Any, list[list[Any]]]:
    """As `declare_fetch`, for names some of which are sets of agents (`keys.agents_key`): for such a name it serves the
    queues of these agents, and with them those of the names that are lists of the same server.

    Args:
        weights: Of shares, by agent, or `anonymous`; `*` for all others, 1 without it. Names that no agent can have are
            left out.
        limiting: As for `declare_fetch`.

    Raises:
        ValueError: A weight is not within `WEIGHTS`.
    """
    least, greatest = WEIGHTS
    for name, weight in weights.items():
        if not least <= weight <= greatest:
            raise ValueError(f"the weight of {name!r} is {weight!r}; it must be between {least} and {greatest:g}")
    others = weights.get("*", 1)
    known = {
        name: weight
        for name, weight in weights.items()
        if weight != others and (is_agent_name(name) or name == ANONYMOUS)
    }
    values = constants(
        agents_prefix=keys.agents_key(""),
        shares_prefix=keys.shares_key(""),
        queue_prefix=keys.QUEUE_PREFIX,
        agent_mark=keys.AGENT_MARK,
        anonymous=ANONYMOUS,
        most_names=_MOST_NAMES,
        kept_s=_KEPT_S,
        others=others,
        weights=_build_index(known),
        digits=_DIGITS,
        width=_DIGITS + _WEIGHT_CHARS,
    )
    return declare_fetch(values + _HOMES, _WEIGHT_OF + _SERVING, limiting)


def _build_index(weights: Mapping[str, float]) -> str:
    """The weights as a text that a script searches by halves: it is made once, and a table would be made at each run.
    Entries of one width, a hash of the agent and its weight, in the order of the hashes."""
    entries = ((sha1(name.encode(), usedforsecurity=False).hexdigest(), weight) for name, weight in weights.items())
    return "".join(sorted(f"{digest[:_DIGITS]}{weight:{_WEIGHT_CHARS}.6g}" for digest, weight in entries))


class Waiting(NamedTuple):
    """How many messages wait, by priority."""

    interactive: int = 0
    normal: int = 0
    batch: int = 0

    @property
    def total(self) -> int:
        return sum(self)


def count_waiting(redis: Any, queues: list[str]) -> list[Waiting]:
    """How many messages wait in the queues of servers, in the order of these, with those of bound agents; of more than
    2000 agents that have messages in one, some are not counted. `redis` is a redis-py client of the broker."""
    try:
        return [Waiting(*each) for each in redis.eval_ro(_COUNT, len(queues), *queues)] if queues else []
    except NoPermissionError:
        lists = [name for queue in queues for name in lists_of(queue)]
        with redis.pipeline(transaction=False) as pipeline:
            for name in lists:
                pipeline.llen(name)
            found: list[Any] = pipeline.execute(raise_on_error=False)
        counts: Counter[tuple[str, str]] = Counter()
        for name, count in zip(lists, found, strict=True):
            counts[keys.without_priority(name), priority_of_list(name)] += count if isinstance(count, int) else 0
        return [Waiting(*(counts[queue, priority] for priority in PRIORITIES)) for queue in queues]


def forget_agents(exchange: RedisExchange, server: str) -> list[str]:
    """Empty what is known of the agents' queues of a server, and return these queues: some of them may be empty."""
    found: set[bytes] = set(exchange.execute(("ZRANGE", keys.shares_key(server), 0, -1))[0])
    exchange.execute(("DEL", keys.shares_key(server)))
    for inbox in (keys.agents_key(server), keys.quiet_agents_key(server)):
        while came := exchange.execute(("SPOP", inbox, _MOST_NAMES))[0]:
            found.update(came)
    names = (name.decode(errors="replace") for name in found)
    return [keys.agent_queue(server, name) for name in names if is_agent_name(name)]

"""Who may do what in Redis: a user for each part of a deployment, as a Redis ACL file.

Owns the rules; the names in them are those of `keys`. Rules in parentheses are a selector: its commands are allowed on
its keys and channels only. A script needs one selector with all of its keys, and each command inside it needs a rule as
if it came alone: so a script gives no right that its user does not have.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.principals import is_agent_name
from tarsy_tasks.config.record import CONFIGURATION_KEY, HISTORY_KEY
from tarsy_tasks.config.server_ids import SERVER_ID_PATTERN
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.interceptors import ANONYMOUS

__all__ = ["ALL_SERVERS", "PARTS", "AgentUser", "build_users", "password_variable", "render_users"]

PARTS = ("worker", "beat", "flower", "operator", "admin")
"""The users other than agents and `default`. `operator` is for `tarsy-tasks` and `celery`, `admin` for Redis itself."""
ALL_SERVERS = "*"

_SHORTEST_PASSWORD = 16
_SHARED = "agent"
"""The user whose calls are anonymous."""
_USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

_PRIORITIES, _OWN_PRIORITIES = "[^!-~][^!-~][369]", "[^!-~][^!-~][36]"
"""What follows the name of a queue in those of its lists for other priorities, as a pattern: two control characters,
which no name of a server or an agent has, and a number."""

_Names = Iterable[str]

_COMMON = (
    *("hello", "ping", "time", "client|setinfo", "client|setname", "multi", "exec", "discard"),
    *("unsubscribe", "punsubscribe"),
)
_RUN_SCRIPTS = ("eval", "evalsha")
_READ_STREAMS = ("xrange", "xrevrange", "xread", "xlen")
_REPAIR_STREAM = (*_RUN_SCRIPTS, "xinfo|stream", "xrange", "xrevrange", "xadd", "del", "rename", "expire")

_HEALTH_AND_TOOLS = (
    keys.health_key("*"),
    keys.worker_health_key("*"),
    keys.HEALTH_WORKERS,
    keys.serving_key("*"),
    keys.tools_key("*"),
    keys.approved_tools_key("*"),
    keys.TOOL_REVISIONS,
)
_NUMBERS = (
    keys.metrics_key("*"),
    keys.MEASURED_SERVERS,
    keys.MEASURING_WORKERS,
    keys.in_flight_key("*"),
    keys.running_calls_key("*"),
    keys.minute_key("*"),
    keys.LAST_FAILURES,
)
_STREAMS = (keys.ALERTS, keys.server_log_key("*"), keys.AUDIT, keys.AGENT_AUDIT)
_WITHDRAWALS = (keys.withdrawn_key("*"), keys.cancelled_key("*"))
_CALL = (keys.call_marker("*"), *_WITHDRAWALS)
_GROUPS = "celery-taskset-meta-*"
_ANY_ID = "????????-????-????-????-????????????"
"""The ids that executors give to tasks."""
_BINDINGS = "_kombu.*"
_REMOTE_CONTROL = "*.celery.pidbox"
_EVENT_QUEUES = "celeryev.*"
_WORKERS_OWN = (
    keys.queue("*"),
    keys.UNACKED,
    keys.waiting_key("*"),
    keys.agents_key("*"),
    keys.shares_key("*"),
    keys.wake_key("*", "*"),
    keys.error_budget_key("*"),
    keys.cache_key("*"),
    keys.sign_in_key("*"),
    keys.WATCHES,
    keys.watch_key("*", "*"),
    keys.QUEUES,
    keys.LEASES,
    keys.DELAYED,
    keys.PARKED,
    keys.ASKING,
    keys.parked_key("*"),
    keys.inbox_key("*"),
    keys.parked_by_key("*"),
    keys.input_key("*"),
    keys.polled_key("*"),
    f"{keys.SERVER_TASKS}*",
    keys.SWEEPS,
    keys.DEAD_LETTERS,
    keys.dead_letter_key("*"),
    *_CALL,
    keys.result_key("*"),
    _GROUPS,
    keys.WORKERS,
    *_HEALTH_AND_TOOLS,
    *_NUMBERS,
    keys.ALERTS,
    keys.server_log_key("*"),
    keys.alert_state_key("*"),
    keys.limit_key("*"),
    keys.session_key("*"),
    keys.sessions_key("*"),
    f"{keys.CALL_STATES}*",
    f"{keys.LARGE_RESULTS}*",
    f"{keys.LARGE_INDEXES}*",
    "tarsy",  # the default queue, for Celery's own tasks
    _BINDINGS,
    _REMOTE_CONTROL,
    _EVENT_QUEUES,
)
_WORKER_COMMANDS = (
    *("get", "set", "mget", "del", "exists", "expire", "ttl", "type", "incr", "strlen", "getrange"),
    *("hget", "hset", "hsetnx", "hdel", "hexists", "hgetall", "hincrby", "hlen", "hmget"),
    *("lpush", "rpush", "rpop", "brpop", "lrem", "llen", "lpos", "lrange"),
    *("sadd", "srem", "smembers", "sismember", "scard", "spop"),
    *("zadd", "zrem", "zcard", "zcount", "zscore", "zrange", "zrevrange", "zrangebyscore", "zremrangebyscore"),
    *("zincrby", "zlexcount", "zrandmember"),
    *("xadd", "watch", "unwatch", "publish", "subscribe", "psubscribe", "client|tracking", "client|caching"),
    *("script|load", "script|exists"),
)


@dataclass(frozen=True)
class AgentUser:
    """A Redis user of agents.

    Attributes:
        name: Of the user, and the `agent_id` whose idempotency keys it may use. Each user but `agent` has queues of its
            own, `mcp.<server>:a:<name>`, and its name is the principal of its calls.
        servers: The MCP servers that it may call. With `ALL_SERVERS`, any server and any `agent_id`; and `agent` may
            then write into the queues of all agents and request health checks, for the names of all queues begin alike.

    Raises:
        ConfigError: The name is not valid, or is that of another part; or the id of a server is not valid.
    """

    name: str
    servers: tuple[str, ...] = (ALL_SERVERS,)

    def __post_init__(self) -> None:
        for server in self.servers:
            if server != ALL_SERVERS and not re.fullmatch(SERVER_ID_PATTERN, server):
                raise ConfigError(f"{server!r} is not the id of an MCP server: use letters, digits, _ and -")
        if not _USER_NAME.fullmatch(self.name) or self.name in (*PARTS, "default", ANONYMOUS):
            raise ConfigError(
                f"{self.name!r} cannot be the name of a Redis user for agents: use up to 64 letters, digits, _ and -, "
                f"and not {', '.join(PARTS)}, default or {ANONYMOUS}"
            )

    @property
    def is_bound(self) -> bool:
        """Whether it may call some servers only."""
        return ALL_SERVERS not in self.servers


def build_users(agents: Iterable[AgentUser], database: int = 0) -> dict[str, str]:
    """The rules of each user, by its name. kombu writes the number of the database into the names of its channels.

    Raises:
        ConfigError: Together, the agents would have no names that can be relied on.
    """
    agents = list(agents)
    _check_names(agents)
    parts = {
        **{agent.name: _agent(agent) for agent in agents},
        "worker": _worker(database),
        "beat": _beat(),
        "flower": _flower(database),
        "operator": _operator(database),
    }
    # Rules on keys hold in every database, so no user may select another one.
    rules = {name: " ".join((f"+select|{database}", *rules)) for name, rules in parts.items()}
    return {"default": "", **rules, "admin": "+@all ~* &*"}


def _check_names(agents: Sequence[AgentUser]) -> None:
    by_variable: dict[str, str] = {}
    for name in sorted({agent.name for agent in agents}):
        other = by_variable.setdefault(password_variable(name), name)
        if other != name:
            raise ConfigError(f"{other} and {name} would have the same password, {password_variable(name)}: rename one")
    everywhere = any(agent.name == _SHARED and not agent.is_bound for agent in agents)
    if others := [agent.name for agent in agents if everywhere and agent.name != _SHARED]:
        raise ConfigError(
            f"{_SHARED}={ALL_SERVERS} could write into the queues of {', '.join(others)} and so call in their names: "
            f"name its servers ({_SHARED}=SERVER,SERVER), or leave it out"
        )


def password_variable(user: str) -> str:
    """The environment variable with the password of a user."""
    return f"TARSY_ACL_{user.upper().replace('-', '_')}"


def render_users(users: Mapping[str, str], passwords: Mapping[str, str]) -> str:
    """The text of an ACL file.

    Args:
        users: What `build_users` gave.
        passwords: By user. Only their digests are written; a user without one is off.

    Raises:
        ConfigError: A password is too short: it can be tried a million times a second.
    """
    return "".join(
        " ".join(filter(None, ("user", name, *_login(name, passwords.get(name)), "resetchannels -@all", rules))) + "\n"
        for name, rules in users.items()
    )


def _login(name: str, password: str | None) -> tuple[str, ...]:
    if password is None:
        return ("off",)
    if len(password) < _SHORTEST_PASSWORD:
        raise ConfigError(
            f"the password of the Redis user {name} has fewer than {_SHORTEST_PASSWORD} characters; "
            "generate one with `openssl rand -hex 32`"
        )
    return ("on", f"#{hashlib.sha256(password.encode()).hexdigest()}")


def _allow(commands: Iterable[str], names: _Names = (), channels: _Names = (), access: str = "") -> str:
    parts = (("+", commands), (f"{access}~", names), ("&", channels))
    return " ".join(f"{sign}{each}" for sign, all_of_them in parts for each in all_of_them)


def _select(commands: Iterable[str], names: _Names = (), channels: _Names = (), access: str = "") -> str:
    return f"({_allow(commands, names, channels, access)})"


_select_reading = partial(_select, access="%R")
_select_writing = partial(_select, access="%W")
_READ_HEALTH_AND_TOOLS = _select_reading(
    ("get", "mget", "hget", "hmget", "hgetall", "zrange", "eval_ro"), _HEALTH_AND_TOOLS
)
_READ_CONFIGURATION = _select_reading(("hget",), [CONFIGURATION_KEY])


def _agent(agent: AgentUser) -> list[str]:
    own = agent.name if is_agent_name(agent.name) else None
    names = [keys.call_queue(server, own) for server in agent.servers]
    # Without a user of their own, no `*`: it would match the channels of all others.
    answers = keys.reply_channel("*", own) if own else keys.reply_channel(_ANY_ID, "")
    others = _OWN_PRIORITIES if own else _PRIORITIES
    # Where there are no shares, calls of isolated sessions go straight to the workers that hold them.
    places = names if own else [*names, *(keys.affinity_queue(name, "*") for name in names)]
    queues = [*places, *(f"{place}{others}" for place in places if not place.endswith(ALL_SERVERS))]
    sets = [keys.agents_key(server) for server in agent.servers] if own else []
    sets += [keys.quiet_agents_key(server) for server in agent.servers] if own else []
    wakes = [keys.wake_key(server, "*") for server in agent.servers]
    sessions = [keys.session_key(f"{server}:{own or '*'}:*") for server in agent.servers]
    waiting = [keys.waiting_key(place) for place in places]
    claims = keys.idempotency_key(agent.name, "*") if agent.is_bound else f"{keys.IDEMPOTENCY}*"
    return [
        _allow(_COMMON),
        # To send calls, and to withdraw them.
        _select(_RUN_SCRIPTS, [keys.UNACKED, keys.QUEUES, keys.DELAYED, *queues, *waiting, *_CALL, claims]),
        _select(("hsetnx", "hget", "hdel", "hexists"), [keys.UNACKED]),
        _select_writing(("zadd",), [keys.QUEUES]),
        _select_writing(("zadd", "zrem"), waiting),
        _select_writing(("zrem",), [keys.DELAYED]),
        # To send calls of isolated sessions to the workers that hold them.
        _select_reading(("hmget",), [*sessions, keys.SWEEPS]),
        _select_reading(("zscore",), [keys.WORKERS]),
        # To have workers look into its queues: to add any name, and to remove none.
        *([_select_writing(("sadd",), sets), _select_writing(("set",), wakes)] if own else []),
        _select(("lpush", "lrem", "llen"), queues),
        _select_reading(("hget", "hexists", "exists"), _CALL),
        _select_writing(("set",), _WITHDRAWALS),
        _select(("set", "get", "del"), [claims]),
        _select_writing(("sadd",), _bindings(names)),
        _select(("set", "get", "del", "expire"), [_GROUPS]),
        # To get answers: with the id of a task comes the right to its result. No patterns, so no agent gets them all.
        # What is announced for a whole process is heard by its own user only.
        _select_reading(("get", "mget"), [keys.result_key("*")]),
        _select(("subscribe",), channels=[keys.result_key("*"), answers]),
        # To follow its own calls while they run.
        _select(("subscribe",), channels=[keys.events_channel("*", own or ""), keys.SERVER_EVENTS]),
        _select_reading(("get", "mget"), [keys.call_state_key("*", own or "")]),
        # To go on watching resources, and to end that: what it watches, workers have written.
        _select_writing(("expire", "del"), [keys.watch_key(own or "", "*")]),
        # To read its own large results. What agents without a user of their own have, all of them can read.
        _select_reading(("getrange",), [keys.large_result_key(own or ":*", "*")]),
        _READ_HEALTH_AND_TOOLS,
        _READ_CONFIGURATION,
        # To record calls that no worker took.
        _select_writing(("xadd", "expire"), [keys.AGENT_AUDIT]),
    ]


def _worker(database: int) -> list[str]:
    return [
        _allow((*_COMMON, *_RUN_SCRIPTS, *_WORKER_COMMANDS), _WORKERS_OWN, _channels(database)),
        # An answer and its audit entry are one step. Workers do not read their audit, and repair that of agents.
        _select(_RUN_SCRIPTS, [*_WORKERS_OWN, keys.AUDIT]),
        _select_writing(("xadd", "xdel", "expire"), [keys.AUDIT]),
        _select(_REPAIR_STREAM, [keys.AGENT_AUDIT, keys.REBUILT_AGENT_AUDIT]),
        _READ_CONFIGURATION,
    ]


def _beat() -> list[str]:
    queue = keys.check_queue("*")
    return [
        _allow(_COMMON),
        _select(_RUN_SCRIPTS, [keys.UNACKED, keys.QUEUES, queue, keys.waiting_key(queue)]),
        _select_writing(("hsetnx",), [keys.UNACKED]),
        _select_writing(("zadd",), [keys.QUEUES, keys.waiting_key(queue)]),
        _select(("lpush", "llen"), [queue]),
        _select_writing(("set",), [keys.check_sent_key("*")]),
        _select_writing(("sadd",), _bindings([queue])),
        _READ_HEALTH_AND_TOOLS,
        _READ_CONFIGURATION,
    ]


def _flower(database: int) -> list[str]:
    return [
        _allow(_COMMON),
        _READ_HEALTH_AND_TOOLS,
        _READ_CONFIGURATION,
        _select_reading(("get", "mget", "hgetall", "hmget", "zrange", "zrangebyscore"), _NUMBERS),
        _select_reading(_READ_STREAMS, _STREAMS),
        _select_reading(("llen", "eval_ro"), [keys.queue("*")]),
        _select_reading(("zrange",), [keys.shares_key("*")]),
        _select_reading(("srandmember",), [keys.agents_key("*")]),
        _select_reading(("type",), [keys.metrics_key("*")]),
        # What is used of limits.
        _select_reading(("get",), [keys.LIMIT_REPORT]),
        _select_reading(("zrange", "zscore", "eval_ro"), [keys.limit_key("*"), keys.LEASES]),
        # Which calls are dead letters, without their messages.
        _select_reading(("zrevrange", "zcard"), [keys.DEAD_LETTERS]),
        # Which calls wait for people, without their messages.
        _select_reading(("zrange", "zcard", "hgetall"), [keys.inbox_key("*"), keys.ASKING, keys.parked_key("*")]),
        _select_reading(("hexists",), [keys.UNACKED]),
        # What a model read.
        _select_reading(("get",), [keys.result_key("*")]),
        # Events and remote control.
        _select(("brpop", "llen", "del"), [_REMOTE_CONTROL, _EVENT_QUEUES]),
        _select(("script|load", "script|exists")),
        _select(
            (*_RUN_SCRIPTS, "sadd", "srem", "smembers", "zadd", "zrem", "zscore", "zrangebyscore", "del"),
            ["_kombu.binding_deadlines", *_bindings(("celeryev", "celery.pidbox", "reply.celery.pidbox"))],
        ),
        _select(("psubscribe", "publish"), channels=_broadcasts(database)),
    ]


def _operator(database: int) -> list[str]:
    """All that workers and agents may do, and to read the audit and the state of Redis."""
    names = [*_WORKERS_OWN, f"{keys.IDEMPOTENCY}*", keys.check_sent_key("*"), keys.TRIAL]
    return [
        _allow(
            (*_COMMON, *_RUN_SCRIPTS, *_WORKER_COMMANDS, "info", "scan", "eval_ro", "srandmember"),
            names,
            _channels(database),
        ),
        _select_reading((*_READ_STREAMS, "type"), _STREAMS),
        _select_writing(("xadd", "expire"), [keys.AGENT_AUDIT]),
        # Which servers there are, and so which programs workers run.
        _select(("hget", "hset", "watch", "lpush", "ltrim", "lrange"), [CONFIGURATION_KEY, HISTORY_KEY]),
    ]


def _bindings(exchanges: _Names) -> list[str]:
    return [f"_kombu.binding{kind}.{each}" for each in exchanges for kind in ("", "_permanent")]


def _channels(database: int) -> list[str]:
    """Answers, remote control, events. Redis compares the text of a pattern to which a client subscribes."""
    return [
        keys.result_key("*"),
        f"{keys.REPLIES}*",
        f"{keys.EVENTS}*",
        keys.SERVER_EVENTS,
        *_broadcasts(database),
    ]


def _broadcasts(database: int) -> list[str]:
    """The channels of fanout exchanges, as kombu spells them."""
    return [f"/{database}.{each}" for each in ("celery.pidbox", "celeryev/*", "celeryev/worker.*")]

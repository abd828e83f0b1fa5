"""Every name that the project uses in Redis: queues and keys.

Owns their spelling, so that ACL rules and a clean-up can be read off one page.
"""

from collections.abc import Callable
from hashlib import sha256
from urllib.parse import quote

AUDIT = "tarsy:audit"
"""Stream of audit entries, a JSON object in the field `AUDIT_FIELD` of each. Only workers write it."""
AGENT_AUDIT = "tarsy:audit:agents"
"""The same for calls that no worker took. Agents write it."""
REBUILT_AGENT_AUDIT = "tarsy:audit:rebuilt"
"""What is to replace it, while a worker repairs it."""
ALERTS = "tarsy:alerts"
"""Stream of the latest alerts, a JSON object in the field `alert` of each entry."""
LAST_FAILURES = "tarsy:last-failures"
"""Hash with a TTL, by server: its last call that was unavailable, unknown or timed out; by `tool_error` and the server,
with a space between: the last one that the server answered with an error."""
TOOL_REVISIONS = "tarsy:tool-revisions"
"""Hash with a TTL, by server: when its listing or an approval last changed; dashboards read the tools only then."""
MEASURED_SERVERS = "tarsy:metrics"
"""Sorted set of the servers that have metrics, by the Redis time of the last ones."""
MEASURING_WORKERS = "tarsy:metrics-workers"
"""Sorted set of the worker processes that report what they have in flight, by the Redis time of the last report."""
EVENTS = "tarsy:events:"
"""Prefix of the channels of what happens to calls while they run."""
SERVER_EVENTS = "tarsy:server-events"
"""The channel of what happens to the sessions of workers with MCP servers."""
CALL_STATES = "tarsy:progress:"
"""Prefix of the keys of how such calls stand."""
SERVER_TASKS = "tarsy:server-task:"
"""Prefix of the keys that say which call waits for a task of a server."""
LARGE_RESULTS = "tarsy:large-results:"
"""Prefix of the keys of large results that are kept whole."""
LARGE_INDEXES = "tarsy:large-index:"
"""Prefix of the keys that say which of them an agent has."""
REPLIES = "tarsy:replies:"
"""Prefix of the channels that announce answers."""
TASK_ID_PREFIX_LENGTH = 19
"""Three groups of the UUID that is a task id: they are the same for all tasks of one process."""
UNACKED = "tarsy:unacked"
"""The in-flight table: a hash, tag → queue, garbage time and message, of all messages that are not answered yet."""
QUEUES = "tarsy:queues"
"""Sorted set of the queues with waiting messages, by when a sweep last looked there."""
IDEMPOTENCY = "tarsy:idempotency:"
"""Prefix of the keys that hold idempotency keys."""
LEASES = "tarsy:leases"
"""Sorted set of the leases, queue and tag with a line break between, by when they were renewed."""
DELAYED = "tarsy:delayed"
"""Sorted set of the messages whose time has not come, queue and tag with a line break between, by when they are due."""
PARKED = "tarsy:parked"
"""Sorted set of the parked calls, queue and tag with a line break between, by when they are woken in any case."""
ASKING = "tarsy:asking"
"""Sorted set with a TTL of the calls whose sessions wait for input, by when that ends at the latest."""
PARKED_STATE = "PARKED"
"""The state of their tasks, which is no state of Celery's own."""
WATCHES = "tarsy:watches"
"""Sorted set with a TTL of the watches of resources: server, bound agent and id, with colons between, by until when a
worker holds them. Workers write it."""
SWEEPS = "tarsy:sweeps"
"""Hash: when the last sweep was, and until when sweeps restore nothing."""
DEAD_LETTERS = "tarsy:poisoned"
"""Sorted set of the tags of dead letters, by when they became dead letters."""
WORKERS = "tarsy:workers"
"""Sorted set of the live workers' instances, by their last heartbeat."""
TRIAL = "tarsy:doctor"
"""What `tarsy-tasks doctor` writes and deletes, to test whether it can."""
HEALTH_WORKERS = "tarsy:health-workers"
"""The workers that report health, a sorted set by the time of their last report."""

QUEUE_PREFIX = "mcp."
"""How the queues of all servers begin."""
_CHECK_SUFFIX = ".check"
_PRIORITY = "\x06\x16"
AGENT_MARK = ":a:"
"""What follows the server in the queue of a bound agent."""
WORKER_MARK = ":w:"
WAKES = "tarsy:wake:"
"""What follows a queue of calls in that of one worker for the same callers."""

AUDIT_FIELD = "entry"
AUDIT_TTL_S = 366 * 24 * 3600
"""How long the audit of a deployment is kept after its last call."""
IDEMPOTENCY_TTL_S = 3500
"""How long an idempotency key is bound to its call: a little less than results are kept."""


def queue(server: str) -> str:
    """The queue of a server's tool calls. Server ids have no dot, so no queue of calls ends like one of checks."""
    return f"{QUEUE_PREFIX}{server}"


def agent_queue(server: str, agent: str) -> str:
    """The queue of a bound agent's calls of a server. Neither name has a colon."""
    return f"{QUEUE_PREFIX}{server}{AGENT_MARK}{agent}"


def call_queue(server: str, agent: str | None) -> str:
    """The queue of a server's calls for an agent; None: it is not bound."""
    return queue(server) if agent is None else agent_queue(server, agent)


def affinity_queue(queue: str, instance: str) -> str:
    """The queue of one worker for calls of isolated sessions that it holds, of those who use this queue. None of the
    names may have a colon."""
    return f"{queue}{WORKER_MARK}{instance}"


def quiet_agents_key(server: str) -> str:
    """As `agents_key`, but nobody waits for changes of it: one worker was woken otherwise (`wake_key`)."""
    return agents_key(f"{server}:quiet")


def wake_key(server: str, instance: str) -> str:
    """A string with a TTL that says nothing: agents write it to have one worker look into their queues of a server."""
    return f"{WAKES}{server}:{instance}"


def agent_of_queue(name: str) -> str:
    """The bound agent that a queue belongs to; empty for one that others share."""
    return name.partition(WORKER_MARK)[0].partition(AGENT_MARK)[2]


def shared_queue(name: str) -> str:
    """Of an agent's queue, or that of one worker, the one that all others use for calls of its server; any other queue
    as it is."""
    return name.partition(WORKER_MARK)[0].partition(AGENT_MARK)[0]


def check_queue(server: str) -> str:
    """The queue of a server's health checks."""
    return f"{QUEUE_PREFIX}{server}{_CHECK_SUFFIX}"


def is_check_queue(name: str) -> bool:
    """Whether a queue is one of health checks."""
    return name.startswith(QUEUE_PREFIX) and name.endswith(_CHECK_SUFFIX) and shared_queue(name) == name


def is_call_queue(name: str) -> bool:
    """Whether a queue is one of tool calls."""
    return name.startswith(QUEUE_PREFIX) and not is_check_queue(name)


def server_of_queue(name: str) -> str | None:
    """The server that a queue belongs to, or None for a queue that is not ours."""
    if not name.startswith(QUEUE_PREFIX):
        return None
    return shared_queue(name).removeprefix(QUEUE_PREFIX).removesuffix(_CHECK_SUFFIX)


def without_priority(queue: str) -> str:
    """The queue as it is configured: kombu has a list with a longer name for each priority."""
    return queue.partition(_PRIORITY)[0]


def with_priority(queue: str, number: int) -> str:
    """The list of a queue that has a number; that of 0 has the name of the queue."""
    return f"{queue}{_PRIORITY}{number}" if number else queue


def priority_in(name: str) -> int:
    """The number in the name of a list; 0 if there is none."""
    number = name.partition(_PRIORITY)[2]
    return int(number) if number.isdecimal() and number.isascii() else 0


def recent_metrics_key(server: str, minute: int) -> str:
    """The same numbers of one minute, counted since the epoch by Redis; they expire a few minutes later."""
    return f"tarsy:metrics:{server}:{minute}"


def minute_key(minute: int | str) -> str:
    """What one minute, counted since the epoch by Redis, brought all servers: a hash that expires after the hour."""
    return f"tarsy:minute:{minute}"


def reply_channel(task_id: str, agent: str) -> str:
    """Where answers are announced, of all tasks of one process: their ids begin alike. A bound agent has channels of
    its own, to which no other one can listen; `agent` is empty for all others, and one that does not know such an id
    cannot listen.
    """
    owner = f"{agent}:" if agent else ""
    return f"{REPLIES}{owner}{task_id[:TASK_ID_PREFIX_LENGTH]}"


def events_channel(task_id: str, agent: str) -> str:
    """Where the events of calls are published, of all tasks of one process. A bound agent has channels of its own, to
    which no other one can listen; `agent` is empty for all others.
    """
    return f"{EVENTS}{agent}:{task_id[:TASK_ID_PREFIX_LENGTH]}"


def call_state_key(task_id: str, agent: str) -> str:
    """The latest events of a call that runs, a JSON string with a TTL; workers write it. `agent` as before."""
    return f"{CALL_STATES}{agent}:{task_id}"


def result_owner(agent: str, agent_id: str | None) -> str:
    """To whom large results belong, in the names of their keys.

    Args:
        agent: The bound agent; empty for others, which only say who they are.
        agent_id: What such an agent says.
    """
    return agent or f":{quote(agent_id or '', safe='', errors='surrogatepass')}"


def large_result_key(owner: str, handle: str) -> str:
    """A large result, compressed, a string with a TTL; workers write it. `owner` is a `result_owner`."""
    return f"{LARGE_RESULTS}{owner}:{handle}"


def large_index_key(owner: str) -> str:
    """Sorted set with a TTL of the large results of an owner: size, end and handle of each, with spaces between, by how
    many bytes the owner's had in all until then. Workers write it."""
    return f"{LARGE_INDEXES}{owner}"


def idempotency_key(agent_id: str | None, digest: str) -> str:
    """The call of an agent's idempotency key, a string with a TTL."""
    return f"{IDEMPOTENCY}{quote(agent_id or '', safe='', errors='surrogatepass')}:{digest}"


def _prefixed(prefix: str) -> Callable[[str], str]:
    return lambda name: f"{prefix}{name}"


waiting_key = _prefixed("tarsy:waiting:")
"""Sorted set of the tags of the messages in a queue, by when they were last seen there."""
health_key = _prefixed("tarsy:health:")
"""The health record of the last check that came through a server's queue, a JSON string with a TTL."""
metrics_key = _prefixed("tarsy:metrics:")
"""The numbers of a server and its tools over all workers: a hash that expires when nothing is counted."""
in_flight_key = _prefixed("tarsy:in-flight:")
"""What a worker process has in flight, a JSON string with a TTL."""
alert_state_key = _prefixed("tarsy:alert:")
"""The last alert about a server, and the health records since: a hash with a TTL."""
running_calls_key = _prefixed("tarsy:running:")
"""The calls that a worker process runs, a JSON string with a TTL."""
server_log_key = _prefixed("tarsy:server-log:")
"""Stream with a TTL of the latest lines that a server wrote to stderr, a JSON object in the field `line` of each."""
call_marker = _prefixed("tarsy:call:")
"""Hash of one call: its delivery count, state and owner (`steps`). It has a TTL; workers write it."""
parked_key = _prefixed("tarsy:parked:")
"""The record of a parked call: why it waits, and what was decided. It has a TTL; workers and operators write it."""
inbox_key = _prefixed("tarsy:inbox:")
"""Sorted set with a TTL of the parked calls that wait for `people`, or for a `task`: their places, as in `PARKED`."""
parked_by_key = _prefixed("tarsy:parked-by:")
"""Sorted set with a TTL of the parked calls of one principal, as in `PARKED`. Workers and operators write it."""
input_key = _prefixed("tarsy:input:")
"""What a server has asked in a call that waits for input, with its own state of the call, and what it was answered: a
hash with a TTL. Only workers and operators read and write it."""
polled_key = _prefixed("tarsy:polled:")
"""Sorted set of the calls that wait for tasks of a server, queue and tag with a line break between, by when the server
is asked again. Workers write it."""
withdrawn_key = _prefixed("tarsy:withdrawn:")
"""Exists when a call is withdrawn. It has a TTL; agents write it."""
cancelled_key = _prefixed("tarsy:cancelled:")
"""Exists when a call that has begun is to be cancelled. It has a TTL; agents write it."""
dead_letter_key = _prefixed("tarsy:poison:")
"""A dead letter: the entry of its message, a string with a TTL."""
serving_key = _prefixed("tarsy:serving:")
"""Sorted set of the instances of workers that serve a server, by their last heartbeat."""
result_key = _prefixed("celery-task-meta-")
"""The key, and the channel, of a task's result (Celery's spelling)."""


session_key = _prefixed("tarsy:session:")
"""Who holds an isolated session, by server, principal, and a digest of principal and run, with colons between: a hash
with a TTL. The principal is empty where it could not be the name of a bound agent. Workers write it."""
sessions_key = _prefixed("tarsy:sessions:")
"""Sorted set with a TTL of the isolated sessions of a server, `session_key` and principal with a line break between, by
when their workers last confirmed them. Workers write it."""
limit_key = _prefixed("tarsy:limit:")
"""What is counted for a limit of the policy, by its id and what of it; workers write these keys, and each has a TTL
(`limit_counters`)."""
PAUSES = limit_key("pauses")
"""Sorted set with a TTL of the servers that asked to wait, by until when."""
LIMIT_REPORT = limit_key("report")
"""The limits that workers keep to, a JSON string with a TTL."""


def watch_key(agent: str, watch_id: str) -> str:
    """The record of a watch of a resource, a hash with a TTL; workers write it, and its agent renews it. `agent` is the
    bound agent, empty for all others."""
    return f"tarsy:watch:{agent}:{watch_id}"


def flight_key(place: str, field: str) -> str:
    """Who asks for what is to be kept in a field of that place in the cache, a string with a TTL; all others wait."""
    return f"{cache_key(place)}:flight:{field}"


def server_task_key(server: str, task: str) -> str:
    """Which call waits for a task of a server, its task id, a string with a TTL; `task` is the server's id of the task,
    and a secret. Workers write it."""
    return f"{SERVER_TASKS}{server}:{sha256(task.encode(errors='surrogatepass')).hexdigest()[:32]}"


def suspended_key(server: str) -> str:
    """Sorted set of the instances that have suspended a server, by when that ends; server ids have no dot."""
    return f"{serving_key(server)}.suspended"


def renewal_key(server: str) -> str:
    """Which worker renews the tokens of that sign-in, a string with a TTL; server ids have no dot."""
    return f"{sign_in_key(server)}.renewal"


sign_in_key = _prefixed("tarsy:sign-in:")
"""The tokens of the person who has signed in to a server, encrypted, a string with a TTL. Agents cannot read it."""
cache_key = _prefixed("tarsy:cache:")
"""Answers of a server that are kept for a while, a hash with a TTL, by server and a digest (`answer_cache`). Workers
write it."""
agents_key = _prefixed("tarsy:agents:")
"""Set of the bound agents whose queues of a server got messages since a worker last looked. Agents add to it."""
shares_key = _prefixed("tarsy:shares:")
"""Sorted set of the bound agents whose queues of a server have messages, by when it is their turn, and of `anonymous`.
Workers write it."""
error_budget_key = _prefixed("tarsy:error-budget:")
"""What of a server's calls failed lately, and its suspension by all workers: a hash with a TTL. Workers write it."""
worker_health_key = _prefixed("tarsy:worker-health:")
"""The health records of one worker, a hash of JSON strings by server, with a TTL."""
check_sent_key = _prefixed("tarsy:check-sent:")
"""Exists while no beat needs to send another check of a server."""
tools_key = _prefixed("tarsy:tools:")
"""The tools of a server, as last listed: a hash with a TTL."""
approved_tools_key = _prefixed("tarsy:approved-tools:")
"""The approved tool definitions of a server, a hash of JSON strings by tool, with a TTL."""

"""The deployment as Redis shows it: does each server have workers, does beat run, are all queues served?"""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from redis.exceptions import ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.fleet import serving_workers
from tarsy_tasks.broker.key_types import is_wrong_type
from tarsy_tasks.broker.shares import count_waiting
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.telemetry.health_records import HealthStatus, read_health

__all__ = ["check_deployment"]

_MOST_KEYS = 100_000
_OVERDUE_S = 30.0


def check_deployment(redis: Any, servers: Collection[ServerConfig]) -> Iterator[Finding]:
    """Check queues, workers and health records of the enabled servers."""
    names = [server.name for server in servers]
    serving = serving_workers(redis, names)
    health = read_health(redis, names)
    queues = [keys.queue(name) for name in names]
    waiting = dict(zip(queues, count_waiting(redis, queues), strict=True))
    for name in names:
        check, record = f"server {name}", health[name]
        calls = waiting[keys.queue(name)].total
        start = f"start a worker: celery -A tarsy_tasks worker -Q {keys.queue(name)}"
        if not serving[name] and calls:
            yield Finding.error(check, f"{calls} calls wait in {keys.queue(name)}, which no worker serves", start)
        elif not serving[name]:
            yield Finding.warning(check, "no worker serves it", start)
        elif record.status is HealthStatus.UNKNOWN:
            yield Finding.warning(check, record.reason, "start beat: celery -A tarsy_tasks beat")
        elif record.status is HealthStatus.DEGRADED:
            yield Finding.warning(check, record.reason, "see `tarsy-tasks health` and the logs of those workers")
        elif not record.healthy:
            remedy = "see `tarsy-tasks health` and its log, then restart it"
            yield Finding.error(check, f"unhealthy: {record.reason}", remedy)
        else:
            yield Finding.ok(check, f"healthy, served by {len(serving[name])} worker(s), {calls} calls wait")
    yield from _check_other_queues(redis, names)
    yield from _check_delayed(redis)


def _check_other_queues(redis: Any, names: list[str]) -> Iterator[Finding]:
    """Queues with messages for servers that are not enabled here."""
    scan: Iterator[bytes] = redis.scan_iter(match=f"{keys.queue('')}*", count=1000, _type="list")
    found = [key.decode(errors="replace") for key in islice(scan, _MOST_KEYS)]
    others = sorted(name for name in found if keys.server_of_queue(keys.without_priority(name)) not in names)
    counts: Counter[str] = Counter()
    for name, count in _count_waiting(redis, others).items():
        counts[keys.without_priority(name)] += count
    for name, count in counts.items():
        if count:
            yield Finding.warning(
                "queues",
                f"{count} messages wait in {name}, whose server is not enabled here",
                "if no other deployment uses this Redis: enable the server, or delete the key",
            )


def _check_delayed(redis: Any) -> Iterator[Finding]:
    try:
        count, first = redis.zcard(keys.DELAYED), redis.zrange(keys.DELAYED, 0, 0, withscores=True)
    except ResponseError as error:
        if is_wrong_type(error):  # else it is not allowed for this user
            text = f"the key {keys.DELAYED} holds something of another application"
            yield Finding.error("delayed messages", text, "delete it; no message is delayed while it is there")
        return
    if not first:
        return
    overdue_s = redis.time()[0] - first[0][1]
    if overdue_s > _OVERDUE_S:
        text = f"{count} messages wait for their ETA, one of them for {overdue_s:.0f} s too long"
        yield Finding.warning("delayed messages", text, "start a worker: workers move what is due into its queue")
    else:
        yield Finding.ok("delayed messages", f"{count} messages wait for their ETA")


def _count_waiting(redis: Any, queues: list[str]) -> dict[str, int]:
    with redis.pipeline(transaction=False) as pipeline:
        for name in queues:
            pipeline.llen(name)
        counts: list[Any] = pipeline.execute(raise_on_error=False)
    return {name: count if isinstance(count, int) else 0 for name, count in zip(queues, counts, strict=True)}

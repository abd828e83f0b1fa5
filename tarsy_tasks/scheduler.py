"""Beat's scheduler: a health check of every MCP server, four times a minute.

Owns when checks are sent. While a check waits in its queue no other is sent, so that nothing piles up where no worker
serves; and if there are several beats, one of them sends.
"""

import logging
from collections.abc import Collection
from typing import Any

from celery.beat import BeatLazyFunc, ScheduleEntry, Scheduler
from celery.schedules import schedule

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.telemetry.health_records import CHECK_INTERVAL_S

__all__ = ["CheckScheduler"]

logger = logging.getLogger(__name__)

_USAGE = 2
"""Exit code, as on the command line, for a wrong configuration."""
_LOOK_S = 1.0
_TAKEN_S = CHECK_INTERVAL_S - 1
"""How long no other check is sent after one; a little less than until the same beat's next one."""


def _name_of(server: str) -> str:
    return f"check {server}"


class CheckScheduler(Scheduler):
    """Schedules `tarsy.check_server` for the configured servers beside the entries of `beat_schedule`.

    It keeps its state in memory: fixed intervals need no file.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._clock = RedisClock()
        self._checked: set[str] = set()
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        super().setup_schedule()
        try:
            servers = self.app.mcp_config.enabled_servers
        except ConfigError as error:
            logger.critical("%s", error)
            raise SystemExit(_USAGE) from None
        self._follow(servers)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """As Celery's, and at least once a second, so that checks follow the configuration."""
        self._follow(self.app.mcp_config.enabled_servers)
        stock: Any = super()
        return min(stock.tick(*args, **kwargs), _LOOK_S)

    def _follow(self, servers: Collection[str]) -> None:
        """Schedule the checks of these servers, and of no others."""
        for server in self._checked - set(servers):
            del self.schedule[_name_of(server)]
            self._checked.discard(server)
        for server in servers:
            if server not in self._checked:
                self.schedule[_name_of(server)] = self._build_check(server)
                self._checked.add(server)

    def _build_check(self, server: str) -> ScheduleEntry:
        entry = self.Entry(
            name=_name_of(server),
            task=CHECK_SERVER,
            # No `expires`: a worker would judge it by its own clock, and only one check waits at a time.
            args=(server, BeatLazyFunc(self._clock.now)),
            schedule=schedule(CHECK_INTERVAL_S),
            app=self.app,
        )
        # Due at once: health is known seconds after beat has started, or has heard of the server.
        entry.last_run_at = entry.default_now() - entry.schedule.run_every
        return entry

    def apply_async(self, entry: ScheduleEntry, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        if entry.task == CHECK_SERVER and not self.wants(entry.args[0]):
            return None
        return super().apply_async(entry, producer=producer, advance=advance, **kwargs)

    def wants(self, server: str) -> bool:
        """Whether no check waits, and no other beat has just sent one."""
        redis = self.producer.channel.client
        self._clock.sync(redis)
        with redis.pipeline(transaction=False) as pipeline:
            pipeline.llen(keys.check_queue(server))
            pipeline.set(keys.check_sent_key(server), 1, nx=True, px=int(_TAKEN_S * 1000))
            waiting, is_first = pipeline.execute()
        return not waiting and bool(is_first)

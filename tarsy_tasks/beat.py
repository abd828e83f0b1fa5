"""Beat's scheduler: a health check of every MCP server, four times a minute.

Owns when checks are sent. A check that still waits in its queue is not sent again, so nothing piles up where no worker
serves.
"""

from typing import Any

from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule

from tarsy_tasks import keys
from tarsy_tasks.celery_app import CHECK_SERVER
from tarsy_tasks.health import CHECK_INTERVAL_S

__all__ = ["CheckScheduler"]


class CheckScheduler(Scheduler):
    """Schedules `tarsy.check_server` for the configured servers beside the entries of `beat_schedule`.

    It keeps its state in memory: fixed intervals need no file.
    """

    def setup_schedule(self) -> None:
        super().setup_schedule()
        for server in self.app.mcp_config.enabled_servers:
            entry = self.Entry(
                name=f"check {server}",
                task=CHECK_SERVER,
                args=(server,),
                schedule=schedule(CHECK_INTERVAL_S),
                options={"expires": CHECK_INTERVAL_S},
                app=self.app,
            )
            # Due at once: health is known seconds after beat has started.
            entry.last_run_at = entry.default_now() - entry.schedule.run_every
            self.schedule[entry.name] = entry

    def apply_async(self, entry: ScheduleEntry, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        if entry.task == CHECK_SERVER and self._is_waiting(entry.args[0]):
            return None
        return super().apply_async(entry, producer=producer, advance=advance, **kwargs)

    def _is_waiting(self, server: str) -> bool:
        return self.producer.channel.client.llen(keys.check_queue(server)) > 0

"""The pages of alerts and of dead letters, and their JSON."""

import shlex

from redis.exceptions import RedisError
from tornado.web import authenticated

from tarsy_tasks.dashboard.describe import describe_alerts, describe_dead_letters
from tarsy_tasks.dashboard.page_handlers import Data, Page

__all__ = ["AlertsData", "AlertsPage", "DeadLettersData", "DeadLettersPage"]


class AlertsPage(Page):
    @authenticated
    async def get(self) -> None:
        state, alerts, problems = await self.reader.state(), None, list[str]()
        if not state.outage:
            try:
                alerts, problems = await self.reader.alerts()
            except RedisError as error:
                state = self.with_outage(state, error)
        self.show("alerts", state, alerts=alerts, problems=problems)


class AlertsData(Data):
    @authenticated
    async def get(self) -> None:
        await self.state()
        with self.reading():
            alerts, problems = await self.reader.alerts()
        self.write({"alerts": describe_alerts(alerts), "problems": problems})


class DeadLettersPage(Page):
    @authenticated
    async def get(self) -> None:
        state, found = await self.reader.state(), None
        if not state.outage:
            try:
                found = await self.reader.dead_letters()
            except RedisError as error:
                state = self.with_outage(state, error)
        self.show("dead_letters", state, found=found, quoted=shlex.quote)


class DeadLettersData(Data):
    @authenticated
    async def get(self) -> None:
        await self.state()
        with self.reading():
            found = await self.reader.dead_letters()
        self.write({"dead_letters": describe_dead_letters(found), "total": found.total})

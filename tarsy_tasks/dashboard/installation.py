"""Makes the MCP pages a part of Flower.

Owns what is changed in Flower before it starts: addresses, templates, its own list of tasks and the events it stores;
`access` guards it. Flower has no interface for this, so only tested versions are accepted.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import flower.app
from flower import urls
from flower.api.tasks import GetQueueLengths
from flower.options import options
from flower.utils.broker import Broker
from flower.views import BaseHandler
from flower.views.broker import BrokerView
from tornado.web import StaticFileHandler, url

from tarsy_tasks.celery_app import broker_urls
from tarsy_tasks.dashboard import access, call_pages, event_pages, inbox_pages, pages
from tarsy_tasks.dashboard.actions import ACTIONS, CancelAction, ServerAction
from tarsy_tasks.dashboard.page_handlers import NotFoundData, NotFoundPage
from tarsy_tasks.dashboard.page_templates import STATIC_PATH, PageTemplates
from tarsy_tasks.dashboard.reader import DashboardReader
from tarsy_tasks.dashboard.task_list import COLUMNS, CallEvents, CallsTable, format_task
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.settings import load_settings

__all__ = ["build_handlers", "check_version", "install"]

_SUPPORTED = "2.2."


def check_version(found: str) -> None:
    """Raises ConfigError if this version of Flower was not tested with the pages."""
    if not found.startswith(_SUPPORTED):
        raise ConfigError(
            f"Flower {found} is not supported. Install a supported version: pip install 'flower>=2.2,<2.3'"
        )


def install(app: Any) -> None:
    """Add the pages to the Flower that this process is about to start.

    Raises:
        ConfigError: This version of Flower is not supported, or the environment is wrong.
    """
    check_version(version("flower"))
    access.guard(load_settings())
    urls.settings["template_loader"] = PageTemplates(Path(urls.settings["template_path"]))
    reader = DashboardReader(app)
    # Before Flower's own handlers: the last of those takes all remaining addresses.
    urls.handlers[:0] = build_handlers(reader)
    flower.app.Events = CallEvents
    # Only defaults: flowerconfig.py, the environment and the command line override them.
    options.format_task = format_task
    options.tasks_columns = COLUMNS
    reader.warm_up()


def build_handlers(reader: DashboardReader) -> list[Any]:
    """The handlers by address, for Tornado; without Flower's prefix."""
    shared = {"reader": reader}
    linked = {**shared, "secret": load_settings().approval_secret}
    server, call = r"([A-Za-z0-9_-]+)", r"([^/]+)"
    actions = "|".join(ACTIONS)
    return [
        url(r"/tasks/datatable", CallsTable),
        url(r"/broker", _BrokerPage),
        url(r"/api/queues/length", _QueueLengths),
        url(r"/mcp", pages.ServersPage, shared, name="mcp"),
        url(r"/mcp/", pages.ServersPage, shared),
        url(rf"/mcp/servers/{server}", pages.ServerPage, shared, name="mcp-server"),
        url(r"/mcp/calls", call_pages.CallsPage, shared, name="mcp-calls"),
        url(rf"/mcp/calls/{call}", call_pages.CallPage, shared, name="mcp-call"),
        url(r"/mcp/alerts", event_pages.AlertsPage, shared, name="mcp-alerts"),
        url(r"/mcp/inbox", inbox_pages.InboxPage, shared, name="mcp-inbox"),
        url(rf"/mcp/inbox/{call}", inbox_pages.ParkedPage, linked, name="mcp-parked"),
        url(r"/mcp/dead-letters", event_pages.DeadLettersPage, shared, name="mcp-dead-letters"),
        url(r"/mcp/api/servers", pages.ServersData, shared, name="mcp-servers-data"),
        url(rf"/mcp/api/servers/{server}", pages.ServerData, shared, name="mcp-server-data"),
        url(rf"/mcp/api/servers/{server}/({actions})", ServerAction, shared, name="mcp-action"),
        url(r"/mcp/api/calls", call_pages.CallsData, shared, name="mcp-calls-data"),
        url(rf"/mcp/api/calls/{call}", call_pages.CallData, shared, name="mcp-call-data"),
        url(rf"/mcp/api/calls/{call}/cancel", CancelAction, shared, name="mcp-cancel"),
        url(r"/mcp/api/alerts", event_pages.AlertsData, shared, name="mcp-alerts-data"),
        url(r"/mcp/api/inbox", inbox_pages.InboxData, shared, name="mcp-inbox-data"),
        url(r"/mcp/api/dead-letters", event_pages.DeadLettersData, shared, name="mcp-dead-letters-data"),
        url(r"/mcp/static/(.*)", StaticFileHandler, {"path": str(STATIC_PATH)}, name="mcp-static"),
        url(r"/mcp/api/.*", NotFoundData, shared),
        url(r"/mcp/.*", NotFoundPage, shared),
    ]


class _RedisHandler(BaseHandler):
    """Gives Flower's Broker tab the configured URL, since Celery's connection has the name of our transport in place of
    `redis://`; and the names of the queues, since without workers it would read the default queue.
    """

    def get_broker(self) -> Broker:
        conf = self.capp.conf
        return Broker(
            broker_urls(self.capp)[0],
            broker_options=conf.broker_transport_options,
            broker_use_ssl=conf.broker_use_ssl,
        )

    def get_active_queue_names(self) -> list[str]:
        workers = self.application.workers.values()
        return sorted({queue["name"] for worker in workers for queue in worker.get("active_queues", ())})


class _BrokerPage(_RedisHandler, BrokerView):
    pass


class _QueueLengths(_RedisHandler, GetQueueLengths):
    pass

"""Flower's Broker tab, which chooses its reader by the scheme of the broker's URL.

Owns giving it the configured URL, since Celery's connection has the name of our transport in place of `redis://`; and
the names of the queues, since without workers Flower would read the default queue.
"""

from flower.api.tasks import GetQueueLengths
from flower.utils.broker import Broker
from flower.views import BaseHandler
from flower.views.broker import BrokerView

from tarsy_tasks.celery_app import broker_urls

__all__ = ["BrokerPage", "QueueLengths"]


class _RedisHandler(BaseHandler):
    def get_broker(self) -> Broker:
        conf = self.capp.conf
        return Broker(
            broker_urls(self.capp)[0],
            broker_options=conf.broker_transport_options,
            broker_use_ssl=conf.broker_use_ssl,
        )

    def get_active_queue_names(self) -> list[str]:
        """The queues of the known workers. Flower falls back to the default queue, which it may not read."""
        workers = self.application.workers.values()
        return sorted({queue["name"] for worker in workers for queue in worker.get("active_queues", ())})


class BrokerPage(_RedisHandler, BrokerView):
    """The tab."""


class QueueLengths(_RedisHandler, GetQueueLengths):
    """The same as JSON."""

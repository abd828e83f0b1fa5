"""Flower's own tab of queues, which goes by the scheme of the broker's address.

Owns telling it the address as it is configured: Celery's connection says the name of our transport in place of
`redis://`, and Flower knows no broker of that name. And which queues there are, where no worker has told yet.
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
        """Those of the workers that are known. Flower takes the default queue else, which it may not read."""
        workers = self.application.workers.values()
        return sorted({queue["name"] for worker in workers for queue in worker.get("active_queues", ())})


class BrokerPage(_RedisHandler, BrokerView):
    """The tab."""


class QueueLengths(_RedisHandler, GetQueueLengths):
    """The same for programs."""

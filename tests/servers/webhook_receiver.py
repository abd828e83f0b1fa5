"""A web server that receives alerts, and answers them well or badly."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.plain_http import PlainHandler, PlainServer, serving

__all__ = ["Receiver", "receiver"]


class Receiver(PlainServer):
    """Answers with the given statuses, the last one for ever; 0 stands for no answer at all."""

    def __init__(self, statuses: list[int]) -> None:
        super().__init__(Handler)
        self.statuses = statuses
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"{super().url}/hook?token=t0psecret"


class Handler(PlainHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.read_body()
        self.server.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
        status = self.server.statuses[min(len(self.server.received), len(self.server.statuses)) - 1]
        if status == 0:
            self.server.released.wait(60)
            return
        self.reply(status)


@contextmanager
def receiver(*statuses: int) -> Iterator[Receiver]:
    with serving(Receiver(list(statuses))) as server:
        try:
            yield server
        finally:
            server.released.set()

"""A Flower that ends although Redis is away."""

import os
import threading

from flower.app import Flower

__all__ = ["EndingFlower"]

_END_S = 3.0


class EndingFlower(Flower):
    """Python waits for the threads of a pool before it ends, and in one of them kombu's attempts to send a control
    command may have no limit. So they get a few seconds.
    """

    def start(self) -> None:
        try:
            super().start()
        finally:
            self.stop()
            timer = threading.Timer(_END_S, os._exit, (0,))
            timer.daemon = True
            timer.start()

from typing import Any

from tornado.web import Application

Events: Any

class Flower(Application):
    options: Any
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...

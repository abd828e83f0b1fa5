from typing import Any

from tornado.web import RequestHandler

class BaseHandler(RequestHandler):
    application: Any
    unauthenticated_api: Any
    capp: Any
    def get_argument(self, name: str, *args: Any, **kwargs: Any) -> Any: ...
    def write(self, chunk: Any) -> None: ...
    def finish(self, chunk: Any = None) -> Any: ...

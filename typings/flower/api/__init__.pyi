from typing import Any

from flower.views import BaseHandler

class BaseApiHandler(BaseHandler):
    async def run_blocking(self, operation: str, target: str, func: Any, *args: Any, **kwargs: Any) -> Any: ...

# Untyped upstream. Only what the package uses is declared, and all of it as Any.
from typing import Any

registry: Any

def dumps(data: Any, serializer: str) -> Any: ...
def loads(data: Any, content_type: str, content_encoding: str, *, force: bool) -> Any: ...

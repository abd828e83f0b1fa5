# Untyped upstream. Only what the package uses is declared, and all of it as Any.
from typing import Any

Panel: Any

def revoke(state: Any, task_id: str, *, terminate: bool) -> Any: ...

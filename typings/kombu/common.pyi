# Untyped upstream. Only what the package uses is declared.
from collections.abc import Callable
from typing import Any

def ignore_errors(conn: Any, fun: Callable[..., Any]) -> None: ...

# Untyped upstream. Only what the package uses is declared.
from typing import Any

class round_robin_cycle:
    items: list[Any]
    def __init__(self, it: Any = None) -> None: ...
    def consume(self, n: int) -> list[Any]: ...

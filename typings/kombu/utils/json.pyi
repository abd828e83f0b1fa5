# Untyped upstream. Only what the package uses is declared.
from typing import Any

def dumps(value: Any) -> str: ...

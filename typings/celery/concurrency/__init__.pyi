# Untyped upstream. Only what the package uses is declared, and all of it as Any.
from typing import Any

def get_implementation(cls: Any) -> Any: ...

# Untyped upstream. Only what the package uses is declared, and all of it as Any.
from typing import Any

default: Any

# Untyped upstream. Only what the package uses is declared.
from typing import Any

DEFAULTS: dict[str, Any]

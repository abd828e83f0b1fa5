from typing import Any

Events: Any

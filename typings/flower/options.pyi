from typing import Any

options: Any

from typing import Any

handlers: list[Any]
settings: dict[str, Any]

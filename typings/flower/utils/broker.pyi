from typing import Any

class Broker:
    def __init__(self, broker_url: str, **kwargs: Any) -> None: ...

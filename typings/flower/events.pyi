from typing import Any

class Events:
    def on_event(self, event: Any) -> None: ...

from typing import Any

class CLIContext:
    app: Any
    def __init__(self, app: Any, no_color: bool, workdir: str | None, quiet: bool = False) -> None: ...

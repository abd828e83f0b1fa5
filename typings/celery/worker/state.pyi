from typing import Any

# Untyped upstream. Only what the package uses is declared.

def maybe_shutdown() -> None: ...

active_requests: Any
requests: Any
reserved_requests: Any
should_stop: Any
should_terminate: Any
revoked: Any
revoked_stamps: Any
task_accepted: Any
task_ready: Any
task_reserved: Any

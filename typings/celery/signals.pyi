# Untyped upstream. Only what the package uses is declared, and all of it as Any.
from typing import Any

celeryd_after_setup: Any
celeryd_init: Any
after_setup_logger: Any
task_rejected: Any

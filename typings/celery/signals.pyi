# Untyped upstream. Only what the package uses is declared, and all of it as Any.
from typing import Any

celeryd_after_setup: Any
celeryd_init: Any
after_setup_logger: Any
beat_init: Any
import_modules: Any
worker_ready: Any
worker_shutdown: Any
worker_shutting_down: Any
task_rejected: Any
task_postrun: Any
task_prerun: Any
task_received: Any
task_success: Any
before_task_publish: Any
after_task_publish: Any
task_sent: Any

"""Another Celery application on the same Redis, with stock settings: `celery -A other_application worker`."""

import os
import threading
from pathlib import Path

from celery import Celery

url = os.environ["OTHER_REDIS_URL"]
app = Celery("other_application", broker=url, backend=url)
app.conf.update(task_acks_late=True, broker_connection_retry_on_startup=True)


@app.task(name="other.long")
def long(ledger: str, may_end: str) -> str:
    """Write down that it runs, and run until the file `may_end` is there."""
    with Path(ledger).open("a") as file:
        file.write("run\n")
    while not Path(may_end).exists():
        threading.Event().wait(0.05)
    return "done"

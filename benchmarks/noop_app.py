"""The stock Celery application that `calls.py` compares with: one task that does nothing, all settings at their
defaults.
"""

import os

from celery import Celery

app = Celery("noop", broker=os.environ["BENCHMARK_REDIS_URL"], backend=os.environ["BENCHMARK_REDIS_URL"])


@app.task
def noop(text: str) -> str:
    return text

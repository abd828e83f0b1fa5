"""Imported first by a worker whose clock libfaketime makes wrong.

libfaketime 0.9.10 takes the absolute monotonic time that Python's `sleep` gives to `clock_nanosleep` for a time of day,
and fails with EINVAL.
"""

import select
import time


def sleep(seconds: float) -> None:
    """Like `time.sleep`, by other means."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = sleep

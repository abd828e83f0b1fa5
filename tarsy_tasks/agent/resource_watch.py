"""A watch of one resource: an iterator of its changes, for synchronous agents and for asyncio.

Owns what of the changes is not read yet, and keeping the watch: its lease, and recording it again when Redis has lost
it. All of that runs on the background loop. Subscribing is the workers'.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Self

from tarsy_tasks.agent.background import call_in_background, run_in_background, start_in_background, wait_for
from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.agent.redis_errors import connection_errors
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.watches import LEASE_S
from tarsy_tasks.errors import BrokerUnavailable, OutcomeError
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.resource_changes import ResourceChange, WatchMessage

__all__ = ["AsyncResourceWatch", "ResourceWatch", "WatchKeeper"]

_RENEW_S = LEASE_S / 3
_LOOK_S = 0.5
_MOST = 100
"""Changes that are not read yet; of more parts of a resource, it only says that the resource may have changed."""

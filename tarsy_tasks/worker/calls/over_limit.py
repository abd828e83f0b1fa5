"""What becomes of a call that is over a limit, or whose server asked to wait: it waits in Redis, or is rejected.

Owns the answers, and what a worker hands to Redis for the check, which is a part of the begin marker (`redelivery`). It
counts nothing itself: that is `broker.limit_counters`.
"""

import logging
import time

from redis.exceptions import ResponseError

from tarsy_tasks.broker.async_deliveries import LimitCheck
from tarsy_tasks.broker.limit_counters import OverLimit
from tarsy_tasks.errors import CallError, RateLimited
from tarsy_tasks.interceptors import Requeued
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.policy import AppliedLimits, Limits, deny_over_limit, describe_wait
from tarsy_tasks.worker.calls.running_call import RunningCall

__all__ = ["CallLimits", "wait_for_server"]

logger = logging.getLogger(__name__)

_LONGEST_S = 24 * 3600.0


class CallLimits:
    """The limits of a policy, for the calls of one worker.

    Args:
        lease_s: How long a lease lasts.
    """

    def __init__(self, limits: Limits, lease_s: float) -> None:
        self._limits = limits
        self._lease_s = lease_s

    def find(self, call: RunningCall) -> AppliedLimits | None:
        """The limits of a call; None if there are none.

        Raises:
            CallError: They cannot be checked, because no message of the package's own transport brought the call.
        """
        found = self._limits.of(call.principal, call.server, call.tool)
        if found is not None and call.delivery is None:
            raise _unchecked(call)
        return found

    def build_check(self, call: RunningCall, applied: AppliedLimits) -> LimitCheck:
        """What Redis is to check now."""
        counted_in = call.delivery.counted_in if call.delivery is not None else None
        text = applied.text_without(counted_in) if counted_in else applied.text
        return LimitCheck(text, min(call.deadline - time.monotonic(), _LONGEST_S), self._lease_s)

    def end(self, call: RunningCall, applied: AppliedLimits, over: OverLimit) -> Requeued:
        """How a call ends here that is over a limit, if it waits.

        Raises:
            CallError: It does not.
        """
        limit = applied.limits[over.id]
        if over.waits:
            return Requeued(f"it is over {limit.place}", over.wait_s)
        denial = call.record.denial = deny_over_limit(f"{call.server}.{call.tool}", limit, over.kind, over.wait_s)
        raise denial.error

    def refuse(self, call: RunningCall, error: ResponseError) -> CallError:
        """The error for a call whose limits Redis refuses to check, for example with rules of an older version."""
        logger.error("the limits of calls cannot be checked, because Redis refuses it: %s", error)
        return _unchecked(call)


def wait_for_server(call: RunningCall, left_s: float) -> Requeued:
    """How a call ends here whose server asked to be left alone for some seconds.

    Raises:
        CallError: Its deadline is earlier.
    """
    if call.deadline - time.monotonic() > left_s:
        return Requeued("its MCP server asked to wait", left_s)
    raise RateLimited(
        f"{call.record.title} did not run: its MCP server has had too many requests and asked to wait. Do not try "
        f"again for {describe_wait(left_s)}.",
        round(left_s, 3),
    )


def _unchecked(call: RunningCall) -> CallError:
    return CallError(
        ErrorCode.INTERCEPTOR_FAILED,
        f"{call.record.title} did not run: this deployment has limits for it, and they cannot be checked. Tell the "
        "user that an operator must fix this.",
    )

"""What an agent learns of a parked call: why it waits, and until when; and waiting for a call that another executor, or
another process, has sent.

Owns reading the state of such a task. That the agent waits longer then is up to `dispatcher`.
"""

from typing import TYPE_CHECKING

from pydantic import ValidationError

from tarsy_tasks.agent.reply_listener import Meta
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.broker import keys
from tarsy_tasks.models import ParkedCall

if TYPE_CHECKING:
    from tarsy_tasks.broker.clock import RedisClock

__all__ = ["is_parked", "note_parked"]


def is_parked(meta: Meta) -> bool:
    """Whether what is stored for a task is the state of a parked call, and no answer."""
    return meta["status"] == keys.PARKED_STATE


def note_parked(call: SubmittedCall, meta: Meta, clock: "RedisClock", now: float, more_s: float) -> float | None:
    """Note why a call waits.

    Args:
        now: Monotonic time.
        more_s: How long it may take when it goes on.

    Returns:
        Its new deadline, monotonic time; None if its agent does not wait for a parked call, or the state is damaged.
    """
    if not call.parks:
        return None
    try:
        parked = ParkedCall.model_validate(meta["result"])
    except (ValidationError, KeyError):
        return None
    call.parked = parked
    return max(call.deadline, now + parked.until - clock.now() + more_s)

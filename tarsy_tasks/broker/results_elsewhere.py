"""What is stored of calls if results are in another Redis than calls.

Owns the steps there. In one Redis the script that ends a call decides whether an answer is stored. In another one its
worker asks first whether the call is still its own, and an answer that is stored already stays.

So it is with the state of a parked call. It is stored first, while nobody else can answer the call; and announced
afterwards, so that an agent that hears of it finds the call parked. Of a call that was withdrawn it is deleted once
`wake_due` has forgotten the call.
"""

from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.parked_calls import Parking
from tarsy_tasks.broker.parked_waking import KEPT_S
from tarsy_tasks.broker.script import NOW, Key, constants, script
from tarsy_tasks.broker.steps import KEYS, STORE

__all__ = ["announce", "forget_state", "store_answer", "store_state"]

_IS_PARKED = r"""
    local function is_parked()
        return string.find(redis.call('GETRANGE', stored_result, 0, 30), '"status": "PARKED"', 1, true) ~= nil
    end
    """


@script(
    """
    local stored = redis.pcall('GETRANGE', key, 0, 30)  -- an error if it is of another type, which is replaced
    if type(stored) == 'string' and string.find(stored, '"status": "SUCCESS"', 1, true) then return end
    """,
    STORE,
    grows=True,
)
def store_answer(*, key: Key, result: str, ttl_s: int, channel: str) -> None: ...


@script(
    constants(kept_s=KEPT_S),
    NOW,
    _IS_PARKED,
    r"""
    if redis.call('EXISTS', stored_result) == 1 and not is_parked() then return end
    redis.call('SET', stored_result, state, 'EX', math.ceil(math.max(0, ends_at - now)) + kept_s)
    """,
    known=KEYS,
    grows=True,
)
def store_state(*, tag: str, state: str, ends_at: float) -> None: ...


# What the call waited for is over: that of this digest, or any if it is empty. The call may wait for the next thing.
@script(
    _IS_PARKED,
    r"""
    local function is_of_digest() return string.find(redis.call('GET', stored_result), digest, 1, true) end
    if is_parked() and (digest == '' or is_of_digest()) then redis.call('DEL', stored_result) end
    """,
    known=KEYS,
)
def forget_state(*, tag: str, digest: str) -> None: ...


def announce(parking: Parking, tag: str, queue: str) -> list[tuple[Any, ...]]:
    """The commands that tell those who wait for a call that it is parked."""
    channels = (keys.result_key(tag), keys.reply_channel(tag, keys.agent_of_queue(queue)))
    return [("PUBLISH", channel, parking.state_elsewhere) for channel in channels]

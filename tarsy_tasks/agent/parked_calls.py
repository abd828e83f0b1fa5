"""What an agent learns of its parked calls, why and until when they wait, and waiting for a call that another executor,
or another process, has sent.

Owns reading the state of such a task. How a call ends without an answer is in `unanswered`.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError

from tarsy_tasks.agent.background import call_in_background, start_in_background
from tarsy_tasks.agent.connection import AgentConnection
from tarsy_tasks.agent.input_calls import InputCalls
from tarsy_tasks.agent.redis_errors import connection_errors
from tarsy_tasks.agent.reply_listener import Hear, Meta
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.agent.unanswered import UnansweredCalls
from tarsy_tasks.broker import keys
from tarsy_tasks.models import ParkedCall

__all__ = ["ParkedCalls"]


@dataclass(eq=False)
class ParkedCalls:
    """The parked calls of one executor.

    Attributes:
        inputs: Answers what is asked.
        more_s: How long a call may take when it goes on.
    """

    find_connection: Callable[[], AgentConnection]
    unanswered: UnansweredCalls
    inputs: InputCalls
    more_s: float

    def hear(self, call: SubmittedCall, meta: Meta) -> bool:
        """Note why a call waits, and that it has more time; False if what is stored of its task is its answer. On the
        background loop."""
        if meta["status"] != keys.PARKED_STATE:
            return False
        with suppress(ValidationError, KeyError):  # a damaged one says nothing, and is no answer
            parked = ParkedCall.model_validate(meta["result"])
            if call.parks:
                call.parked = parked
                self.inputs.hear(call)
                watching, call.watching = call.watching, []
                for each in watching:
                    each.set_result(None)
                if parked.holds_session:
                    return True
                deadline = time.monotonic() + parked.until - self.find_connection().replies.clock.now() + self.more_s
                self.unanswered.move_deadline(call, max(call.deadline, deadline))
        return True

    def attach(self, call: SubmittedCall, task_id: str, hear: Hear) -> None:
        """Begin to wait for a call that has been sent; from any thread."""
        call.id, call.sent, call.hear = task_id, Future(), hear
        call.is_attached = call.parks = True
        call_in_background(partial(self._attach_soon, call, hear))

    def _attach_soon(self, call: SubmittedCall, hear: Hear) -> None:
        call.sending = start_in_background(self._attach(call, hear), call.context)

    async def _attach(self, call: SubmittedCall, hear: Hear) -> None:
        try:
            replies = self.find_connection().replies
            replies.expect(call.id, hear)
            await replies.connect(call.deadline, "The call goes on.", may_have_run=True)
            with suppress(*connection_errors()):  # the listener polls
                await replies.poll(call.id)
        except Exception as error:
            self.unanswered.forget(call)
            call.fail(error)
        else:
            call.confirm()
            self.unanswered.start_timer(call)
        finally:
            call.sending = None

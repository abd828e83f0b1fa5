"""What a pending call is for both executors; each adds `result` and `cancel` in its own way."""

from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.agent.submitted import SubmittedCall

__all__ = ["Pending"]


class Pending:
    """A call that was submitted.

    Attributes:
        id: The task id, as Flower shows it; empty for a call that was rejected before it was sent.
        call: The call itself.
    """

    def __init__(self, dispatcher: CallDispatcher, submitted: SubmittedCall) -> None:
        self.id = submitted.id
        self.call = submitted.call
        self._dispatcher = dispatcher
        self._submitted = submitted

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._submitted.future.done()

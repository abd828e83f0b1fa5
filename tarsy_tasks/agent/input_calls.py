"""Answers of an agent to what servers ask in its calls: those that it gives itself, and those of its `on_input`.

Owns sending an answer, and calling the agent's function once for each set of questions. What a server asks comes as the
state of a parked call (`parked_calls`); whether an answer fits, a worker decides.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tarsy_tasks.agent.background import start_in_background, wait_for
from tarsy_tasks.agent.function_run import FunctionRuns
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.methods import ANSWER_INPUT
from tarsy_tasks.models import ParkedCall
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.questions import Answers

__all__ = ["InputCalls", "OnInput"]

logger = logging.getLogger(__name__)

OnInput = Callable[[ParkedCall], "Answers | Awaitable[Answers | None] | None"]
"""Answers the `questions` of a call; None: somebody else does. In an asyncio agent it may be a coroutine function."""


@dataclass(eq=False)
class InputCalls:
    """The answers of one executor to what servers ask.

    Attributes:
        request: Asks a server for something, as `CallDispatcher.request`.
        on_input: The agent's function; None if it has none.
    """

    request: Callable[[str, Any, dict[str, Any]], SubmittedCall]
    on_input: OnInput | None
    _runs: FunctionRuns = field(default_factory=FunctionRuns)

    def answer(self, call: SubmittedCall, answers: Answers, parked: ParkedCall | None = None) -> SubmittedCall:
        """Begin to send answers to what a call asks; from any thread. A worker refuses them if it asks something else.

        Args:
            parked: What they answer; None: the questions that its handle has returned last, or else what it asks now.

        Raises:
            ValueError: It asks nothing, or the answers are not JSON.
        """
        parked = parked or call.shown
        if parked is None or not parked.questions:
            raise ValueError(f"`{call.call.name}` waits for no input: `PendingCall.questions` waits until it does")
        given = answers if isinstance(answers, str) else {name: _plain(each) for name, each in answers.items()}
        sent = self.request(call.server, ANSWER_INPUT, {"call": call.id, "digest": parked.digest, "answers": given})
        sent.answered.add_done_callback(lambda done: self._note(call, parked, done))
        return sent

    def hear(self, call: SubmittedCall) -> None:
        """A call is parked, or still is; on the background loop."""
        parked = call.parked
        if self.on_input is None or parked is None or not parked.questions or call.asked == parked.digest:
            return
        call.asked = parked.digest
        start_in_background(self._ask(self.on_input, call, parked), call.context)

    async def _ask(self, on_input: OnInput, call: SubmittedCall, parked: ParkedCall) -> None:
        loop = call.order.loop if call.order is not None else None
        try:
            run = await self._runs.run(lambda finish: finish(on_input(parked)), loop, call.context.copy())
            answers = run.result()
        except Exception:
            logger.exception("`on_input` failed on %s; the server gets no answer", call.call.name)
            answers = "cancel"
        if answers is None or call.has_ended:
            return
        try:
            said = await self._send(call, answers, parked)
            if said.is_error and not call.has_ended:
                logger.error("what `on_input` answered for %s was refused: %s", call.call.name, said.content)
                if said.error_code is ErrorCode.INVALID_ARGUMENTS:  # nothing else would answer them
                    await self._send(call, "cancel", parked)
        except Exception:
            logger.exception("what `on_input` answered for %s could not be sent", call.call.name)

    async def _send(self, call: SubmittedCall, answers: Answers, parked: ParkedCall) -> Any:
        sent = self.answer(call, answers, parked).answered
        await wait_for(sent)
        return sent.result()

    def _note(self, call: SubmittedCall, parked: ParkedCall, done: Any) -> None:
        if not done.exception() and not done.result().is_error:
            call.replied = parked.digest


def _plain(answer: Any) -> Any:
    return {**cast("Mapping[str, Any]", answer)} if isinstance(answer, Mapping) else answer

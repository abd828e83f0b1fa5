"""Who asks for a decision about a parked call, and the result of it, in words for the person who decides or answers.

Owns these words; `broker.parked_calls` decides, and `broker.input_rounds` takes answers.
"""

from collections.abc import Mapping

from tarsy_tasks.broker.input_rounds import Answered
from tarsy_tasks.broker.parked_calls import Decided

__all__ = ["ANSWER_TEXTS", "DECISION_TEXTS", "DONE", "LONGEST_NAME", "LONGEST_WHY", "describe_sender"]

LONGEST_WHY = 1000
"""Characters of a reason."""
LONGEST_NAME = 100
"""Characters of the name of the person."""
DECISION_TEXTS: Mapping[Decided, str] = {
    Decided.APPROVED: "approved",
    Decided.DENIED: "denied",
    Decided.COUNTED: "approved; another person has to approve it, too",
    Decided.REPEATED: "you have approved it before; another person has to approve it, too",
    Decided.OWN: "not approved: it is a call of your own",
    Decided.CHANGED: "not decided: the call has changed; look at it again",
    Decided.LATE: "not decided: it was decided before",
    Decided.EXPIRED: "not decided: it has expired",
    Decided.WITHDRAWN: "not decided: its agent has cancelled it",
    Decided.GONE: "not decided: the call is gone: it has ended, or its message in Redis was deleted or replaced",
    Decided.OTHER: "not decided: it waits for answers, which `tarsy-tasks answer` gives",
    Decided.UNKNOWN: "not found",
}
ANSWER_TEXTS: Mapping[Answered, str] = {
    Answered.ANSWERED: "answered; the call goes on",
    Answered.CHANGED: "not answered: it asks something else now; look at it again",
    Answered.LATE: "not answered: somebody else was earlier",
    Answered.EXPIRED: "not answered: it has expired",
    Answered.WITHDRAWN: "not answered: the call was cancelled, or has ended",
    Answered.UNKNOWN: "not found: no call of this id waits for input",
}
DONE = (Decided.APPROVED, Decided.DENIED, Decided.COUNTED)
"""The decision was recorded."""


def describe_sender(principal: str, agent_id: str) -> str:
    """Who asks. Any agent may claim any `agent_id`, also that of another one: so it is marked."""
    return principal or (f"{agent_id} (not verified)" if agent_id else "")

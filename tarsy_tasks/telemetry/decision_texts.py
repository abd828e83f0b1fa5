"""Who asks for a decision about a parked call, and what became of it, in words for the person who decides.

Owns these words; `broker.parked_calls` decides.
"""

from collections.abc import Mapping

from tarsy_tasks.broker.parked_calls import Decided

__all__ = ["DECISION_TEXTS", "DONE", "LONGEST_NAME", "LONGEST_WHY", "describe_sender"]

LONGEST_WHY = 1000
"""Characters of a reason."""
LONGEST_NAME = 100
"""Characters of the name of who decides."""
DECISION_TEXTS: Mapping[Decided, str] = {
    Decided.APPROVED: "approved",
    Decided.DENIED: "denied",
    Decided.COUNTED: "approved; somebody else has to approve it, too",
    Decided.REPEATED: "you have approved it before; somebody else has to approve it, too",
    Decided.OWN: "nobody approves a call of their own",
    Decided.CHANGED: "not decided: it asks something else now; look at it again",
    Decided.LATE: "not decided: somebody else was earlier",
    Decided.EXPIRED: "not decided: it has expired",
    Decided.WITHDRAWN: "not decided: its agent has cancelled it",
    Decided.UNKNOWN: "not found",
}
DONE = (Decided.APPROVED, Decided.DENIED, Decided.COUNTED)
"""The decision counts."""


def describe_sender(principal: str, agent_id: str) -> str:
    """Who asks. Any agent may claim any `agent_id`, also that of another one: so it is marked."""
    return principal or (f"{agent_id} (not verified)" if agent_id else "")

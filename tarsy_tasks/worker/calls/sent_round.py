"""What is sent with a call whose server has asked something before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp_types import ElicitResult

__all__ = ["SentRound"]


@dataclass(frozen=True, slots=True)
class SentRound:
    """One round of a call.

    Attributes:
        number: The round of the questions that are answered; 0: nothing was asked yet.
        state: What the server gave for itself; None if nothing.
        answers: By the keys of the server; None if it asked nothing.
        sent: Digest of the call that was asked about; empty if that was in this worker just now.
    """

    number: int
    state: str | None
    answers: Mapping[str, ElicitResult] | None
    sent: str = ""

    def arguments(self) -> dict[str, Any]:
        """What the SDK's methods take for it."""
        found: dict[str, Any] = {}
        if self.answers is not None:
            found["input_responses"] = dict(self.answers)
        if self.state is not None:
            found["request_state"] = self.state
        return found

"""The waterfall of a call: a bar for each thing that happened to it, on one axis.

Owns what the bars are, of the steps that the audit records. `plots` draws them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tarsy_tasks.telemetry.audit import Step, StepName

__all__ = ["Bar", "Waterfall", "build_waterfall"]

LABELS = {
    StepName.QUEUED: "queued",
    StepName.PICKED_UP: "prepared",
    StepName.SENT: "sent",
    StepName.RECOVERED: "recovered",
    StepName.ANSWERED: "answered",
}
MEANINGS = {
    StepName.QUEUED: "waited in the queue",
    StepName.PICKED_UP: "the worker checked and repaired its arguments, and waited for the session",
    StepName.SENT: "processed by the MCP server",
    StepName.RECOVERED: "a new session had replaced the lost one; waited to be sent again",
    StepName.ANSWERED: "the answer was stored",
}
"""By step: what happened from it to the next one."""
LOST = "sent by a worker that was lost or stopped before the answer; then the call waited for another worker"
"""What happened after an earlier worker had sent the call."""


@dataclass(frozen=True)
class Bar:
    """What happened to a call from one step to the next.

    Attributes:
        attempt: Which time it was sent, of a bar `sent`; else 0.
        worker: Where; empty in the queue.
        is_lost: This worker was lost or stopped, and the call was delivered again.
        begins_s: After the first step.
        lasts_s: 0 for the last step.
    """

    step: StepName
    attempt: int
    worker: str
    begins_s: float
    lasts_s: float
    is_lost: bool = False

    @property
    def label(self) -> str:
        return LABELS[self.step]

    @property
    def meaning(self) -> str:
        return LOST if self.is_lost else MEANINGS[self.step]


@dataclass(frozen=True)
class Waterfall:
    """All bars, in order of time; `lasts_s` is the length of the axis."""

    bars: tuple[Bar, ...]
    lasts_s: float


def build_waterfall(steps: Sequence[Step], worker: str) -> Waterfall:
    """The waterfall of a call that a worker answered.

    Args:
        steps: In order of time.
        worker: The one that answered; that of an agent's own entry is empty.
    """
    bars: list[Bar] = []
    attempt = 0
    for step, following in pairwise([*steps, *steps[-1:]]):
        attempt += step.name is StepName.SENT
        bars.append(
            Bar(
                step=step.name,
                attempt=attempt if step.name is StepName.SENT else 0,
                worker="" if step.name is StepName.QUEUED else step.worker or worker,
                begins_s=step.at - steps[0].at,
                lasts_s=following.at - step.at,
                is_lost=step.worker is not None,
            )
        )
    return Waterfall(tuple(bars), steps[-1].at - steps[0].at if steps else 0.0)

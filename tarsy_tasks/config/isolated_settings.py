"""The part of a server's configuration that is about isolated sessions."""

from pydantic import Field

from tarsy_tasks.config.texts import Model

__all__ = ["Isolated"]

_DAY_S = 24 * 3600


class Isolated(Model):
    """The isolated sessions of a server: one for each run of an agent that asks for one."""

    idle_s: float = Field(
        default=300,
        ge=1,
        le=_DAY_S,
        allow_inf_nan=False,
        description="Seconds without a call after which the session of a run is closed.",
    )
    restart: bool = Field(
        default=False,
        description="Whether a session that was lost is replaced without notice; by default the next call of the run "
        "fails with SESSION_LOST, once.",
    )
    max_sessions: int = Field(default=200, ge=1, description="At most so many at once, in all workers.")
    max_per_agent: int = Field(
        default=100,
        ge=1,
        description="At most so many for one agent; all that are not verified count as one.",
    )
    max_per_worker: int = Field(
        default=50, ge=1, description="At most so many of them in one worker process; further runs wait."
    )

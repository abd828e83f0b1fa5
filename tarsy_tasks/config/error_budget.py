"""`error_budget` of a server: how many of its calls may fail. What counts them is `broker.error_budget`."""

from typing import Annotated

from pydantic import AfterValidator, Field

from tarsy_tasks.config.texts import Model

__all__ = ["ErrorBudget"]


def _validate_rate(rate: float) -> float:
    if 0 < rate < 1:
        return rate
    why = "no call may fail then, and the first one that does suspends it" if rate <= 0 else "it is never exceeded then"
    raise ValueError(f"found {rate:g}, expected a number between 0 and 1, such as 0.5; {why}")


class ErrorBudget(Model):
    """How many calls of a server may fail before all workers suspend it for a while. Only calls fail that got no answer
    in time, and those whose connection failed."""

    max_failure_rate: Annotated[float, AfterValidator(_validate_rate)] = Field(
        allow_inf_nan=False, description="The share of its calls that may fail, between 0 and 1."
    )
    window_s: float = Field(
        default=60, ge=10, le=3600, allow_inf_nan=False, description="The calls of the last so many seconds count."
    )
    min_calls: int = Field(default=20, ge=2, description="With fewer calls in the window it is not suspended.")

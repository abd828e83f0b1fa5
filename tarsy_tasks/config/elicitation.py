"""How long the calls of a server wait for input that it asks for while it handles them.

Owns the model. How a call waits is in `worker.calls.input_rounds`, and of older servers in `worker.calls.held_input`.
"""

from pydantic import Field

from tarsy_tasks.config.texts import Model

__all__ = ["Elicitation"]

_DAY_S = 24 * 3600


class Elicitation(Model):
    """How long calls wait for the input that the server asks for."""

    expires_s: float = Field(
        default=_DAY_S,
        gt=0,
        le=30 * _DAY_S,
        allow_inf_nan=False,
        description="How long a call waits for an answer to the server's questions, in seconds; then it is rejected.",
    )
    wait_s: float = Field(
        default=300.0,
        ge=0,
        le=_DAY_S,
        allow_inf_nan=False,
        description="The same for a server of the handshake era, whose session has to wait, too: at most so long, and "
        "never longer than the call may take. 0: it may ask nothing.",
    )

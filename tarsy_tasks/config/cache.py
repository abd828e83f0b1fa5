"""Which answers of a server are kept for a while, as its entry says."""

from typing import Annotated

from pydantic import Field

from tarsy_tasks.config.by_tool import find_for_tool
from tarsy_tasks.config.texts import Model

__all__ = ["Cache"]

_KeptS = Annotated[float, Field(gt=0, le=24 * 3600, allow_inf_nan=False)]


class Cache(Model):
    """Which answers of a server are kept for a while, for all workers. Errors are never kept."""

    tools: dict[Annotated[str, Field(min_length=1)], _KeptS] = Field(
        default_factory=dict,
        description="How many seconds the answers of a tool are kept: by the name of a tool, or else by the first glob "
        "(`get_*`) that matches. Only for tools that change nothing.",
    )
    resources: _KeptS | None = Field(
        default=None,
        description="How many seconds reads and lists of its resources are kept at most; less if the server says so, "
        "and not after it has reported a change.",
    )

    def ttl_s(self, tool: str) -> float | None:
        """Seconds that the answers of `tool` are kept; None: they are not."""
        return find_for_tool(tool, self.tools)

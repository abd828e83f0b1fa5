"""`summarization` of a server: when an agent has a long result summarized, and how long the summary may be.

Only agents read it, and only those whose executor has a `summarizer`.
"""

from pydantic import Field

from tarsy_tasks.config.texts import Model

__all__ = ["Summarization"]


class Summarization(Model):
    """Which results of a server's tools an agent has summarized, if it has a `summarizer`. Errors never are."""

    enabled: bool = Field(default=True, description="Whether they are summarized.")
    size_threshold_tokens: int = Field(default=5000, ge=100, description="Those with more tokens are summarized.")
    summary_max_token_limit: int = Field(default=1000, ge=50, description="How many tokens a summary may have.")

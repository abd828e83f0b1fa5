"""Whether agents are bound: whether what follows their messages has to stay in the queue that they came from.

Owns the decision, which a worker makes when it starts. Which queues an agent may write into, Redis decides
(`acl`); without users in Redis there is nothing that binding could add to.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from tarsy_tasks.broker import keys

__all__ = ["Binding", "decide_binding"]


@dataclass(frozen=True)
class Binding:
    """Whether agents are bound, and why.

    Attributes:
        reason: In words that follow "because".
    """

    is_bound: bool
    reason: str

    def covers(self, queue: str) -> bool:
        """Whether a message of this queue binds what follows it. Queues of other names are the operator's own."""
        return self.is_bound and keys.server_of_queue(queue) is not None


def decide_binding(canvas: Literal["any", "same_queue"] | None, urls: Iterable[str]) -> Binding:
    """Decide for a deployment.

    Args:
        canvas: The setting `TARSY_CANVAS`; None if it is not set.
        urls: Of broker and result backend.
    """
    if canvas is not None:
        return Binding(canvas == "same_queue", f"TARSY_CANVAS is {canvas}")
    # Everybody can be `default`: a password without a user name identifies nobody.
    users = [user for url in urls if (user := _user_of(url)) not in ("", "default")]
    if users:
        return Binding(is_bound=True, reason=f"the Redis URL names the user `{users[0]}`")
    return Binding(is_bound=False, reason="the Redis URL names no user")


def _user_of(url: str) -> str:
    try:
        return urlsplit(url).username or ""
    except ValueError:  # connecting fails with the reason
        return ""

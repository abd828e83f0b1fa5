"""Who sent a message, as far as that is verified: its principal.

Owns where the name comes from. A bound agent has a user of its own in Redis, and only that user may write into its
queues (`acl`): so the queue that a message was taken from is its identity. In the queue that all others share, a
signature may name its sender. What a message says of itself counts for nothing here.
"""

import re
from urllib.parse import unquote, urlsplit

from tarsy_tasks.broker import keys
from tarsy_tasks.interceptors import ANONYMOUS

__all__ = ["SHARED_USERS", "bound_agent_of", "find_senders", "is_agent_name", "principal_of"]

SHARED_USERS = ("default", "agent", "worker", "beat", "flower", "operator", "admin")
"""Users of Redis that identify no agent; what they send is anonymous."""
_AGENT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CHECK = ".check"
"""How queues of health checks end: beat may write into those that do."""


def is_agent_name(name: str) -> bool:
    """Whether a bound agent can have this name. Names are compared as they are: `SRE` is another agent than `sre`."""
    return bool(_AGENT_NAME.fullmatch(name)) and not name.endswith(_CHECK) and name not in (*SHARED_USERS, ANONYMOUS)


def bound_agent_of(url: str) -> str | None:
    """The bound agent that a Redis URL logs in as; None if it names no user, or one that identifies no agent."""
    try:
        name = unquote(urlsplit(url).username or "")
    except ValueError:  # connecting fails with the reason
        return None
    return name if is_agent_name(name) else None


def principal_of(queue: str, signer: str = "") -> str:
    """Who sent a message.

    Args:
        queue: Where it was taken from; empty if that says nothing.
        signer: Who signed it, if its signature was verified. A signed message can be repeated by all who may write into
            a queue, so the queue comes first.
    """
    return keys.agent_of_queue(queue) or signer or ANONYMOUS


def find_senders(agent: str, signer: str) -> tuple[str, ...]:
    """As which principals workers may see what an agent's process sends.

    Args:
        agent: The bound agent; empty for others.
        signer: As whom the process signs, if it does. Workers with its certificate take that for their own.
    """
    return (agent,) if agent else (signer, ANONYMOUS) if signer else (ANONYMOUS,)

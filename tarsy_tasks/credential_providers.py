"""Where workers get the credentials of agents, in place of the directory `TARSY_AGENT_SECRETS`.

Write a class with this method, publish it as an entry point of the group `tarsy_tasks.credential_providers`, and name
that in `TARSY_CREDENTIAL_PROVIDER` where the workers run. This module imports nothing of the worker.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from tarsy_tasks.errors import NoCredentialError

__all__ = ["ENTRY_POINTS", "MAX_AGE_S", "CredentialProvider", "NoCredentialError"]

ENTRY_POINTS = "tarsy_tasks.credential_providers"
MAX_AGE_S = 60.0


class CredentialProvider(Protocol):
    """Reads the credentials of agents. It runs on the event loop of all sessions: what blocks belongs into a thread.

    Attributes:
        max_age_s: For how long a credential is used without being read again; without this attribute, 60 s. After a
            server has refused one (401), it is read at once.
    """

    max_age_s: float

    async def read(self, agent: str, names: Collection[str]) -> Mapping[str, str]:
        """The credentials of an agent, which has 10 s. The same value until there is another one: each other value
        costs the agent a new session.

        Args:
            agent: The principal of the call, which is verified; or `worker`, for the workers' own.
            names: Those of `${agent:NAME}` in the server's entry.

        Returns:
            All of these, by name.

        Raises:
            NoCredentialError: The agent has none, or not all of them; its call is rejected. After any other exception
                its call is answered as `unavailable`. The texts are for the log, so they contain no secret.
        """
        ...

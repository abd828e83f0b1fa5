"""Servers that each agent uses with a credential of its own: `${agent:NAME}` in an entry, and `agent_credentials`.

Owns the model, and where such references may be. Where the values come from is in
`worker.transport.agent_secrets`, and whose sessions use them in `worker.sessions.agent_pool`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from tarsy_tasks.config.texts import Model
from tarsy_tasks.config.variables import convert_texts, find_agent_references

__all__ = ["OTHER_FIELDS", "AgentCredentials", "find_agent_variables", "refuse_agent_references"]

_FIELDS = ("env", "headers", "auth")
OTHER_FIELDS = ("command", "args", "variables_file", "cwd", "sandbox", "url", "ca_file")
"""Where references are resolved, but not those to the credentials of agents."""


class AgentCredentials(Model):
    """How a server is used with the credentials of agents."""

    max_sessions: int = Field(
        default=50, ge=1, le=1000, description="How many agents have a session with it in one worker process at once."
    )
    idle_s: float = Field(
        default=600, ge=1, allow_inf_nan=False, description="An agent's session that is idle for so long is closed."
    )
    service: bool = Field(
        default=False,
        description="Whether the workers have a credential of their own, under the name `worker`, for health checks "
        "and the shared list of tools.",
    )

    def require_sense(self, given: Mapping[str, Any]) -> None:
        """Raise a `ValueError` if this does not fit the other values of its server, by field."""
        if not {*_FIELDS, "pin"} <= given.keys():
            return  # one of them is wrong, which is reported already
        is_used = bool(find_agent_variables(given))
        if not is_used and self != AgentCredentials():
            raise ValueError("no text in `env`, `headers` or `auth` refers to `${agent:NAME}`; add one, or remove this")
        if is_used and given["pin"] == "block" and not self.service:
            raise ValueError(
                "with `pin: block`, tools are pinned by the list that the workers get with a credential of their own; "
                'add `"service": true`'
            )


def find_agent_variables(given: Mapping[str, Any]) -> frozenset[str]:
    """The names of the credentials of agents that a server refers to; `given` are its values by field."""
    return frozenset(_find([_plain(given.get(field)) for field in _FIELDS]))


def refuse_agent_references(value: Any) -> None:
    """Raise a `ValueError` if a value outside of `env`, `headers` and `auth` has such a reference."""
    if found := _find(_plain(value)):
        raise ValueError(
            f"found `${{agent:{min(found)}}}`, which is allowed in `env`, `headers` and `auth` only: move it there"
        )


def _find(value: Any) -> set[str]:
    found: set[str] = set()

    def collect(text: str, _: object) -> str:
        found.update(find_agent_references(text))
        return text

    convert_texts(value, (), collect)
    return found


def _plain(value: Any) -> Any:
    """Of a model, its values."""
    return dict(value) if isinstance(value, Model) else value

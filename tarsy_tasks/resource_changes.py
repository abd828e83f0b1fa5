"""Changes of resources that an agent watches.

Owns what an agent gets, and the message in which a worker publishes it (docs/protocol.md).
"""

from typing import Literal

from tarsy_tasks.models import FrozenModel

__all__ = ["ResourceChange", "WatchMessage"]


class ResourceChange(FrozenModel):
    """A watched resource has changed, or may have.

    Attributes:
        server: Id of its server.
        uri: What changed, masked: the resource, or a part of it.
        is_certain: The server has reported it. False: it may have changed, because a session, a worker or the
            connection to Redis was lost, and nobody heard what the server reported meanwhile.
    """

    server: str
    uri: str
    is_certain: bool = True


class WatchMessage(FrozenModel):
    """What a worker publishes of one watch.

    Attributes:
        watch: Its id, that of the task that began it.
        kind: `begun`: the server has accepted it; `changed`; `missed`: it was accepted again, and may have changed
            before; `refused`: the server does not accept it, and it has ended.
        uri: Of what changed, masked.
        error: Why it was refused, masked.
    """

    watch: str
    kind: Literal["begun", "changed", "missed", "refused"]
    uri: str = ""
    error: str = ""

    def dump(self) -> bytes:
        """As JSON, that begins with `{"watch":`."""
        return self.model_dump_json(exclude_defaults=True).encode()

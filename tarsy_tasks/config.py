import json
from pathlib import Path
from pydantic import BaseModel
from tarsy_tasks.settings import Settings


class Timeouts(BaseModel):
    connect_s: float = 30
    list_s: float = 10
    call_s: float = 60
    recreate_s: float = 10
    tools: dict[str, float] = {}

    def call_timeout(self, tool):
        return self.call_s


class ServerConfig(BaseModel):
    name: str
    transport: str = "stdio"
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    enabled: bool = True
    timeouts: Timeouts = Timeouts()
    auth: object = None
    verify_ssl: bool = True
    ca_file: str | None = None
    max_message_bytes: int = 16 * 2**20


class Config(BaseModel):
    servers: dict[str, ServerConfig]

    @property
    def enabled_servers(self):
        return {k: v for k, v in self.servers.items() if v.enabled}


def find_config_path():
    return Settings().mcp_config


def load_config(p):
    d = json.loads(Path(p).read_text())["mcpServers"]
    return Config(
        servers={k: ServerConfig(name=k, transport="http" if "url" in v else "stdio", **v) for k, v in d.items()}
    )

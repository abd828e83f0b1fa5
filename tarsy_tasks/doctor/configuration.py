"""The configuration of the MCP servers: is it the one that is meant, and does it keep its secrets?"""

import re
import stat
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tarsy_tasks.config import Config, ServerConfig, find_config_path, load_config
from tarsy_tasks.config.variables import find_references
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.errors import ConfigError

__all__ = ["check_configuration", "is_loopback"]

_FILES = ("mcp.json", "mcp.yaml")
_SECRET_NAME = re.compile(r"(?i)(?:api[_-]?key|token|secret|passw(?:or)?d|credential|private[_-]?key|^authorization$)")
_SECRET_ARGUMENT = re.compile(r"(?i)^--?(?:[a-z-]*-)?(?:api-?key|token|secret|password)(?:=(?P<value>.+))?$")


def check_configuration() -> tuple[Config | None, list[Finding]]:
    """Look at the configuration that a worker would read here; None when it would read none."""
    try:
        path = find_config_path()
        config = load_config(path)
    except ConfigError as error:
        return None, [Finding.error("configuration", str(error), "mend it; `tarsy-tasks config schema` helps editors")]
    return config, list(_check(path, config))


def _check(path: Path, config: Config) -> Iterator[Finding]:
    enabled = config.enabled_servers
    if enabled:
        yield Finding.ok("configuration", f"{path}: {', '.join(enabled)}")
    else:
        yield Finding.warning(
            "configuration", f"{path}: no server is enabled, so there is nothing to call", "add one to `mcpServers`"
        )
    others = [name for name in _FILES if Path(name).exists() and not Path(name).samefile(path)]
    if others:
        yield Finding.warning(
            "configuration",
            f"there are several here: {path} is read, {', '.join(others)} not",
            "remove what is not read, or name the right one in TARSY_MCP_CONFIG",
        )
    yield from _check_permissions(path)
    for server in enabled.values():
        yield from _check_credentials(server, path)
        yield from _check_address(server)


def _check_permissions(path: Path) -> Iterator[Finding]:
    if path.stat().st_mode & stat.S_IWOTH:
        yield Finding.error(
            "configuration", f"{path}: everybody may write it, and so have workers run any command", f"chmod o-w {path}"
        )


def _check_credentials(server: ServerConfig, path: Path) -> Iterator[Finding]:
    places = sorted(_literal_credentials(server))
    if not places:
        return
    text = f"{', '.join(places)}: looks like a credential that stands in the file itself"
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        text += ", which others on this machine may read"
    yield Finding.warning(
        f"server {server.name}", text, "write ${NAME} there, and set NAME in the environment of the workers only"
    )


def _literal_credentials(server: ServerConfig) -> Iterator[str]:
    """The places of what looks like one; never the value."""

    def is_literal(text: str) -> bool:
        return bool(text) and not find_references(text)

    for kind, values in (("env", server.env), ("headers", server.headers)):
        for name, value in values.items():
            if _SECRET_NAME.search(name) and is_literal(value):
                yield f"{kind}.{name}"
    if server.auth is not None and is_literal(server.auth.token):
        yield "auth.token"
    for index, argument in enumerate(server.args):
        if match := _SECRET_ARGUMENT.match(argument):
            value = match["value"] or (server.args[index + 1] if index + 1 < len(server.args) else "")
            if is_literal(value) and not value.startswith("-"):
                yield f"args[{index}]"
    if server.url is not None:
        parts = urlsplit(server.url)
        values = [value for name, value in parse_qsl(parts.query) if _SECRET_NAME.search(name)]
        if any(map(is_literal, [parts.netloc.rpartition("@")[0], *values])):
            yield "url"


def _check_address(server: ServerConfig) -> Iterator[Finding]:
    if server.url is None or find_references(server.url):
        return
    parts = urlsplit(server.url)
    sends_secret = server.auth is not None or any(_SECRET_NAME.search(name) for name in server.headers)
    if parts.scheme == "http" and sends_secret and not is_loopback(parts.hostname or ""):
        yield Finding.warning(
            f"server {server.name}", "its credentials travel unencrypted, over http", "use its https address"
        )
    if not server.verify_ssl:
        yield Finding.warning(
            f"server {server.name}",
            "verify_ssl is off: anybody on the way may answer in its place, and read its credentials",
            "name its authority in ca_file instead",
        )


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine for certain."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")

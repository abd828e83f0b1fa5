"""The configuration of the MCP servers: is it the one that is meant, and does it keep its secrets?"""

import stat
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from tarsy_tasks.config import (
    Config,
    OAuthClientCredentials,
    ServerConfig,
    check_secrets,
    find_config_path,
    load_config,
)
from tarsy_tasks.config.secret_places import find_secrets
from tarsy_tasks.config.variables import has_references
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.errors import ConfigError

__all__ = ["check_configuration", "is_loopback"]

_FILES = ("mcp.json", "mcp.yaml")


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
    yield from _check_secrets(path)
    for server in enabled.values():
        yield from _check_address(server)


def _check_permissions(path: Path) -> Iterator[Finding]:
    if path.stat().st_mode & stat.S_IWOTH:
        yield Finding.error(
            "configuration", f"{path}: everybody may write it, and so have workers run any command", f"chmod o-w {path}"
        )


def _check_secrets(path: Path) -> Iterator[Finding]:
    readable = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    for exposure in check_secrets(path):
        text = f"{exposure.text}; others on this machine may read that file" if readable else exposure.text
        yield Finding.warning("secrets", text, exposure.remedy)


def _check_address(server: ServerConfig) -> Iterator[Finding]:
    if server.url is None:
        return
    sends_secret = server.auth is not None or next(find_secrets(server), None) is not None
    if sends_secret and _is_unencrypted(server.url):
        yield Finding.warning(
            f"server {server.name}", "its credentials travel unencrypted, over http", "use its https address"
        )
    for address in (
        (server.auth.token_url, server.auth.issuer) if isinstance(server.auth, OAuthClientCredentials) else ()
    ):
        if address is not None and _is_unencrypted(address):
            text = "the secret of its OAuth client travels unencrypted, over http"
            yield Finding.warning(f"server {server.name}", text, "use the https address of the authorization server")
    if not server.verify_ssl:
        yield Finding.warning(
            f"server {server.name}",
            "verify_ssl is off: anybody on the way may answer in its place, and read its credentials",
            "name its authority in ca_file instead",
        )


def _is_unencrypted(address: str) -> bool:
    if has_references(address):
        return False
    parts = urlsplit(address)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine for certain."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")

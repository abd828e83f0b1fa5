"""The configuration of the MCP servers: is it the intended one, and does it expose secrets?"""

import stat
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from tarsy_tasks.config import (
    Config,
    OAuthClientCredentials,
    OAuthSignIn,
    ServerConfig,
    check_secrets,
    find_config_path,
    load_config,
)
from tarsy_tasks.config.record import IN_REDIS
from tarsy_tasks.config.secret_places import find_secrets
from tarsy_tasks.config.variables import has_references
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.file_rights import find_rights
from tarsy_tasks.settings import load_settings

__all__ = ["check_configuration", "is_loopback"]

_FILES = ("mcp.json", "mcp.yaml")


def check_configuration() -> tuple[Config | None, list[Finding]]:
    """Check the configuration that a worker would read here; None if it cannot be read."""
    try:
        path = find_config_path()
        config = load_config(path)
    except ConfigError as error:
        remedy = "correct it; editors can use `tarsy-tasks config schema`"
        return None, [Finding.error("configuration", str(error), remedy)]
    return config, list(_check(path, config))


def _check(path: Path, config: Config) -> Iterator[Finding]:
    enabled = config.enabled_servers
    if enabled:
        yield Finding.ok("configuration", f"{path}: {', '.join(enabled)}")
    else:
        yield Finding.warning("configuration", f"{path}: no server is enabled", "add or enable one in `mcpServers`")
    others = [name for name in _FILES if Path(name).exists() and not Path(name).samefile(path)]
    if others and load_settings().mcp_config != IN_REDIS:
        yield Finding.warning(
            "configuration",
            f"there are several files: {path} is read, {', '.join(others)} not",
            "remove the others, or name the right one in TARSY_MCP_CONFIG",
        )
    if find_rights(path).can_write:
        text = f"{path}: every user of this machine can write it, and so make workers run any command"
        yield Finding.error("configuration", text, f"chmod o-w {path}")
    for exposure in check_secrets(path):
        is_readable = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        text = f"{exposure.text}; other users of this machine can read that file" if is_readable else exposure.text
        yield Finding.warning("secrets", text, exposure.remedy)
    for server in enabled.values():
        yield from _check_address(server)


def _check_address(server: ServerConfig) -> Iterator[Finding]:
    if server.url is None:
        return
    sends_secret = server.auth is not None or next(find_secrets(server), None) is not None
    if sends_secret and _is_unencrypted(server.url):
        text = "its credentials are sent unencrypted, over http"
        yield Finding.warning(f"server {server.name}", text, "use its https address")
    oauth = server.auth if isinstance(server.auth, OAuthClientCredentials | OAuthSignIn) else None
    for address in (getattr(oauth, "token_url", None), oauth.issuer) if oauth else ():
        if address is not None and _is_unencrypted(address):
            text = "the secret of its OAuth client is sent unencrypted, over http"
            yield Finding.warning(f"server {server.name}", text, "use the https address of the authorization server")
    if not server.verify_ssl:
        yield Finding.warning(
            f"server {server.name}",
            "verify_ssl is off: anyone on the network path can impersonate it and read its credentials",
            "set ca_file to its certificate authority instead",
        )


def _is_unencrypted(address: str) -> bool:
    if has_references(address):
        return False
    parts = urlsplit(address)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    """Whether a host name or address certainly is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")

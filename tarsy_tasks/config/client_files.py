"""Where clients keep their configuration files on this machine.

Owns the paths. The first one that exists is what its client reads here: files of a project precede those of a user.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["CLIENTS", "find_client_files"]

_VS_CODE = "{apps}/Code/User"
_EXTENSIONS = f"{_VS_CODE}/globalStorage"

CLIENTS: dict[str, tuple[str, ...]] = {
    "claude-code": (".mcp.json", "~/.claude.json"),
    "claude-desktop": ("{apps}/Claude/claude_desktop_config.json",),
    "cline": (
        "~/.cline/data/settings/cline_mcp_settings.json",
        f"{_EXTENSIONS}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
    ),
    "codex": (".codex/config.toml", "{codex}/config.toml"),
    "continue": (".continue/config.yaml", "~/.continue/config.yaml", "~/.continue/config.json"),
    "copilot-cli": (".mcp.json", "~/.copilot/mcp-config.json"),
    "cursor": (".cursor/mcp.json", "~/.cursor/mcp.json"),
    "gemini": (".gemini/settings.json", "~/.gemini/settings.json"),
    "goose": ("{goose}/config.yaml",),
    "kiro": (".kiro/settings/mcp.json", "~/.kiro/settings/mcp.json"),
    "librechat": ("librechat.yaml",),
    "opencode": (
        "opencode.json",
        "opencode.jsonc",
        "{config}/opencode/opencode.json",
        "{config}/opencode/opencode.jsonc",
    ),
    "roo": (".roo/mcp.json", f"{_EXTENSIONS}/rooveterinaryinc.roo-cline/settings/mcp_settings.json"),
    "tarsy": ("tarsy.yaml", "deploy/config/tarsy.yaml", "config/agents.yaml"),
    "vscode": (".vscode/mcp.json", f"{_VS_CODE}/mcp.json", f"{_VS_CODE}/settings.json"),
    "windsurf": ("~/.codeium/windsurf/mcp_config.json",),
    "zed": (".zed/settings.json", "{config}/zed/settings.json"),
}
"""Paths by client; relative ones are in the working directory."""


def find_client_files(
    client: str, environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> tuple[list[Path], list[Path]]:
    """The files of a client that exist, and all places where it may have one.

    Args:
        client: One of `CLIENTS`.
        environ: Environment variables, of which HOME, XDG_CONFIG_HOME, APPDATA and CODEX_HOME count.
        platform: As `sys.platform`.
    """
    home = environ.get("HOME") or environ.get("USERPROFILE") or str(Path.home())
    config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    apps = {
        "darwin": f"{home}/Library/Application Support",
        "win32": environ.get("APPDATA") or f"{home}/AppData/Roaming",
    }.get(platform, config)
    goose = f"{apps}/Block/goose/config" if platform == "win32" else f"{config}/goose"
    places = {"apps": apps, "config": config, "codex": environ.get("CODEX_HOME") or f"{home}/.codex", "goose": goose}
    paths = [Path(path.format(**places).replace("~", home, 1)) for path in CLIENTS[client]]
    return [path for path in paths if path.is_file()], paths

"""MCP servers that we did not write: npm packages, installed by version into a cache folder and started with node."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["npm_server", "npx_server"]

_SCOPE = "@modelcontextprotocol"
_PACKAGES = ("server-everything", "server-filesystem", "server-memory")
_VERSION = "2026.8.31"
_INSTALL_S = 240


def npm_server(package: str) -> list[str]:
    """The command that starts a package's server; installs the packages when they are not in the cache yet.

    Skips the test where that is impossible, or fails it under CI.
    """
    node = shutil.which("node") or _give_up("there is no node on this machine")
    folder = _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    finished = folder / "finished"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once: one installs, the other waits
        if not finished.exists():
            _install(folder)
            finished.touch()
    return [node, str(folder / "node_modules" / _SCOPE / package / "dist" / "index.js")]


def npx_server(package: str) -> dict[str, object]:
    """The entry of a package's server in a configuration, started the way most people do it: with npx."""
    folder = Path(npm_server(package)[1]).parents[4]
    name = package.replace("server-", "mcp-server-")
    return {"command": "npx", "args": ["--no-install", name], "cwd": str(folder)}


def _cache_folder() -> Path:
    cache = os.environ.get("TARSY_TEST_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "tarsy-tasks-tests") / f"npm-{_VERSION}"


def _install(folder: Path) -> None:
    npm = shutil.which("npm") or _give_up("there is no npm on this machine")
    packages = [f"{_SCOPE}/{package}@{_VERSION}" for package in _PACKAGES]
    command = [npm, "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    if done.returncode:
        _give_up(f"npm could not install them: {done.stderr[-1000:]}")


def _give_up(reason: str) -> NoReturn:
    reason = f"the MCP servers from npm ({', '.join(_PACKAGES)}) cannot run: {reason}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)

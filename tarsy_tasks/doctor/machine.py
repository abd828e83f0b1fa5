"""This machine: the versions of the dependencies, and the programs that MCP servers need."""

import shutil
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import PurePath

from packaging.requirements import Requirement

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.run_dir import open_run_dir

__all__ = ["check_machine"]

_SHOWN = ("celery", "kombu", "redis", "mcp")
_LAUNCHERS = {
    "npx": "install Node.js",
    "node": "install Node.js",
    "uvx": "install uv",
    "uv": "install uv",
    "docker": "install Docker and allow this user to use it",
}


def check_machine(servers: Iterable[ServerConfig]) -> Iterator[Finding]:
    """Check this machine for the enabled servers."""
    yield from _check_versions()
    yield from _check_launchers([server for server in servers if server.command is not None])
    try:
        yield Finding.ok("probes", f"workers keep their probe files in {open_run_dir()}")
    except ConfigError as error:
        yield Finding.warning("probes", str(error), "set TARSY_RUN_DIR to a directory that workers can write to")


def _check_versions() -> Iterator[Finding]:
    wrong: list[str] = []
    for text in requires("tarsy-tasks") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement.name} is not installed; required: {requirement.specifier}")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} is {found}; required: {requirement.specifier}")
    if wrong:
        remedy = "install the required versions: pip install --upgrade tarsy-tasks, with its constraints.txt"
        yield Finding.error("versions", "; ".join(wrong), remedy)
    else:
        yield Finding.ok("versions", ", ".join(f"{name} {version(name)}" for name in ("tarsy-tasks", *_SHOWN)))


def _check_launchers(servers: list[ServerConfig]) -> Iterator[Finding]:
    needed: dict[str, list[str]] = {}
    for server in servers:
        assert server.command is not None
        needed.setdefault(PurePath(server.command).name, []).append(server.name)
    for program in ("npx", "node"):
        found = shutil.which(program)
        if found:
            yield Finding.ok(program, found)
        elif program not in needed:
            yield Finding.note(program, "not found; no configured server needs it")
    for program, names in needed.items():
        if program in _LAUNCHERS and not shutil.which(program):
            text = f"not found, but needed to start {', '.join(names)}"
            yield Finding.error(program, text, f"{_LAUNCHERS[program]}, or correct the PATH of the workers")
    for server in servers:
        yield from _check_arguments(server)


def _check_arguments(server: ServerConfig) -> Iterator[Finding]:
    """Arguments without which a program waits for input that never comes."""
    program = PurePath(server.command or "").name
    if program == "npx" and not {"-y", "--yes"} & set(server.args):
        yield Finding.warning(
            f"server {server.name}",
            "npx without -y waits for a confirmation that nobody gives",
            "put -y first in its args",
        )
    flags = [each for each in server.args if each.startswith("-")]
    if program == "docker" and "run" in server.args:
        is_interactive = any(each == "--interactive" or (each[1:2] != "-" and "i" in each) for each in flags)
        if not is_interactive:
            yield Finding.warning(
                f"server {server.name}",
                "docker run without -i gives the server no standard input",
                "put -i (and --rm) after run in its args",
            )

"""From a server's configuration to the command that starts it in its sandbox.

Owns what every server may read.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from errno import ENOENT
from functools import cache
from pathlib import Path

import anyio

from tarsy_tasks.config import Sandbox
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.worker.transport.sandbox import launcher
from tarsy_tasks.worker.transport.sandbox.kernel import Kernel, probe_kernel
from tarsy_tasks.worker.transport.sandbox.seccomp import build_filter
from tarsy_tasks.worker.transport.sandbox.temporary import TemporaryFolder
from tarsy_tasks.worker.transport.stdio import StdioCommand

__all__ = ["in_sandbox"]

logger = logging.getLogger(__name__)

_PROGRAMS = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/sbin", "/usr")
_SETTINGS = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts", "gai.conf", "gitconfig"),
    *("group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime"),
    *("mime.types", "nsswitch.conf", "os-release", "passwd", "pki/ca-trust", "pki/tls/certs", "protocols"),
    *("resolv.conf", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone"),
)
"""Below /etc: no passwords, no keys."""
_MACHINE = ("/proc", "/sys/devices/system/cpu", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage")
_READ = (*_PROGRAMS, *(f"/etc/{name}" for name in _SETTINGS), *_MACHINE)
_WRITE = tuple(f"/dev/{name}" for name in ("full", "null", "random", "urandom", "zero"))


@asynccontextmanager
async def in_sandbox(server: str, sandbox: Sandbox, command: StdioCommand) -> AsyncGenerator[StdioCommand]:
    """The command that starts the server in its sandbox; its temporary files are removed when the context is left.

    Raises:
        ConfigError: A path does not exist, or this kernel lacks a part of a sandbox that is required.
        OSError: The program does not exist, or no folder for temporary files can be made.
    """
    kernel = await asyncio.to_thread(probe_kernel)
    _accept(server, sandbox, kernel)
    if not kernel.is_usable:
        yield command
        return
    folder = await asyncio.to_thread(TemporaryFolder)
    try:
        yield await asyncio.to_thread(_prepare, server, sandbox, kernel, command, folder.path)
    finally:
        with anyio.CancelScope(shield=True):
            await asyncio.to_thread(folder.remove)


def _accept(server: str, sandbox: Sandbox, kernel: Kernel) -> None:
    if kernel.missing:
        lacks, remedies = "; ".join(kernel.missing), "; ".join(kernel.missing.values())
        if sandbox.required:
            what = f"servers.{server}.sandbox: it is required, but incomplete on this machine: {lacks}"
            raise ConfigError(f"{what}. To complete it: {remedies}")
        _warn(server, lacks)


@cache
def _warn(server: str, lacks: str) -> None:
    logger.warning("the sandbox of MCP server `%s` is incomplete: %s; see `tarsy-tasks doctor`", server, lacks)


def _prepare(server: str, sandbox: Sandbox, kernel: Kernel, command: StdioCommand, folder: str) -> StdioCommand:
    program = _find_program(command)
    for key, paths in (("read", sandbox.read), ("write", sandbox.write)):
        for path in paths:
            if not Path(path).exists():
                raise ConfigError(
                    f"servers.{server}.sandbox.{key}: {path} does not exist; create it, or correct the path"
                )
            if target := _find_way_out(path, sandbox.write):
                raise ConfigError(
                    f"servers.{server}.sandbox.{key}: {path} leads to {target}, and the server may change where it "
                    f"leads, because it may write to the folder above; list {target} instead"
                )
    own = [] if command.cwd is None else [os.path.realpath(command.cwd)]
    orders = [
        *(["namespaces="] if not kernel.namespaces else []),
        *(["network="] if sandbox.network else []),
        f"landlock={kernel.landlock}",
        *(f"read={os.fsencode(path).hex()}" for path in (*_READ, *_installation(program), *own, *sandbox.read)),
        *(f"write={os.fsencode(path).hex()}" for path in (*_WRITE, folder, *sandbox.write)),
        *(f"{key}={getattr(sandbox, key)}" for key in ("memory_mb", "processes", "files")),
        *([f"cpu_s={sandbox.cpu_s}"] if sandbox.cpu_s is not None else []),
    ]
    if kernel.filter and (program_of_filter := build_filter(sandbox.network)) is not None:
        orders.append(f"filter={program_of_filter.hex()}")
    return replace(
        command,
        command=launcher.COMMAND[0],
        args=[*launcher.COMMAND[1:], str(program), *command.args],
        env={**command.env, "TMPDIR": folder, launcher.ORDERS: "\n".join(orders)},
    )


def _find_way_out(path: str, writable: Sequence[str]) -> str | None:
    """Where a path leads that begins in a folder of the server, and ends elsewhere: it may have made that link."""
    target = os.path.realpath(path)
    for folder in writable:
        is_inside = Path(path) != Path(folder) and Path(path).is_relative_to(folder)
        if is_inside and not Path(target).is_relative_to(os.path.realpath(folder)):
            return target
    return None


def _find_program(command: StdioCommand) -> Path:
    """Its absolute path, symbolic links kept: Python finds its packages by it."""
    here = Path(command.cwd or ".").absolute()
    named = str(here / command.command) if os.sep in command.command else command.command
    found = shutil.which(named, path=command.env.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError(ENOENT, "not found, or not executable", command.command)
    return here / found


def _installation(program: Path) -> Iterator[Path]:
    """What belongs to a program outside the system's folders: the rest of a Python or Node, a virtual environment."""
    for path in dict.fromkeys((program, program.resolve())):
        yield path
        prefix = path.parent.parent
        if path.parent.name != "bin":
            continue
        if (prefix / "pyvenv.cfg").is_file():
            yield prefix
            python = prefix / "bin" / "python"
            if python.resolve() != path:
                yield from _installation(python.resolve())
        elif any(prefix.glob("lib/python3*/os.py")):
            yield prefix
        elif (prefix / "lib" / "node_modules").is_dir():
            yield from (path.parent, prefix / "lib" / "node_modules")

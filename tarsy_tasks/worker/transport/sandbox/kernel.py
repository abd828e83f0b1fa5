"""What the kernel of this machine can do for a sandbox.

Owns the probe and the wording of what is missing. It starts a process, so it blocks for some 50 ms, once.
"""

import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from tarsy_tasks.worker.transport.sandbox import launcher
from tarsy_tasks.worker.transport.sandbox.seccomp import build_filter

__all__ = ["Kernel", "probe_kernel"]

_PROBE_S = 10.0
_TRUNCATE_VERSION = 3
_NO_NAMESPACES = (
    "allow unprivileged user namespaces (the sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone and "
    "kernel.apparmor_restrict_unprivileged_userns; in a container, its seccomp profile and masked paths of /proc)"
)


@dataclass(frozen=True)
class Kernel:
    """What is there.

    Attributes:
        landlock: Version of Landlock's interface; 0: there is none.
        filter: Whether system calls can be filtered.
        namespaces: Why there are no namespaces; empty if there are.
    """

    landlock: int
    filter: bool
    namespaces: str

    @property
    def is_usable(self) -> bool:
        """Whether the launcher runs at all."""
        return bool(self.landlock or self.filter or not self.namespaces)

    @property
    def missing(self) -> dict[str, str]:
        """What a sandbox lacks here → the remedy. Empty if it is complete."""
        lacks: dict[str, str] = {}
        if not self.landlock:
            remedy = "use Linux 5.13 or newer, with landlock in the boot parameter lsm="
            lacks["files are not protected, because the kernel has no Landlock"] = remedy
        elif self.landlock < _TRUNCATE_VERSION:
            lacks["files can be emptied, because this Landlock is too old"] = "use Linux 6.2 or newer"
        if not self.filter:
            remedy = "use Linux with seccomp, on x86_64 or aarch64"
            lacks["the network and dangerous system calls are open, because there is no seccomp"] = remedy
        if self.namespaces:
            lacks[f"other processes are visible, because namespaces cannot be made ({self.namespaces})"] = (
                _NO_NAMESPACES
            )
        return lacks


@cache
def probe_kernel() -> Kernel:
    """Try what a sandbox needs, in a process of its own."""
    if sys.platform != "linux":
        return Kernel(landlock=0, filter=False, namespaces="this is not Linux")
    try:
        done = subprocess.run(  # noqa: S603 - our own file
            [*launcher.COMMAND, launcher.PROBE],
            env=launcher.bare_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
        found = {key: value for key, _, value in (line.partition("=") for line in done.stdout.splitlines())}
    except (OSError, subprocess.TimeoutExpired):
        found = {}
    return Kernel(
        landlock=int(found.get("landlock", 0)),
        filter="seccomp" in found and build_filter(network=False) is not None,
        namespaces=found.get("namespaces", "the probe failed"),
    )

"""The sandbox of stdio servers: what the kernel of this machine can do of it."""

from collections.abc import Iterable, Iterator

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.doctor.finding import Finding
from tarsy_tasks.worker.transport.sandbox.kernel import probe_kernel

__all__ = ["check_sandbox"]


def check_sandbox(servers: Iterable[ServerConfig]) -> Iterator[Finding]:
    """Check this machine for the enabled servers."""
    kernel = probe_kernel()
    boxes = {server.name: server.sandbox for server in servers if server.sandbox is not None}
    refused = [name for name, sandbox in boxes.items() if sandbox.required]
    if not kernel.missing:
        yield Finding.ok("sandbox", f"this kernel can do all of it, Landlock in version {kernel.landlock}")
    for lack, remedy in kernel.missing.items():
        if refused:
            yield Finding.error("sandbox", f"{lack}; so {', '.join(refused)} will not start", remedy)
        elif boxes:
            yield Finding.warning("sandbox", f"{lack}; {', '.join(boxes)} will start without that", remedy)
        else:
            yield Finding.note("sandbox", f"{lack}; no configured server has a sandbox", remedy)

"""A digest of a call: server, tool, arguments and principal. By it a decision or an answer belongs to one call."""

from math import inf

from tarsy_tasks.telemetry.audit import build_canonical, build_digest
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import is_large

__all__ = ["digest_of"]


async def digest_of(call: RunningCall) -> str:
    """Of a call as it would be sent now."""
    asked = [call.server, call.tool, call.arguments, call.principal]
    if is_large(call.arguments):
        canonical = await call.connection.long_work.run(build_canonical, asked, allowed_s=inf)
    else:
        canonical = build_canonical(asked)
    return build_digest(canonical)

"""For tests of agents: executors with canned answers, an MCP server to script, a running stack (docs/testing.md).

    canned    what a call is answered with
    stub      executors that send nothing; `stub_servers` is what they say of servers
    server    an MCP server in the test's own process
    stack     Valkey and a worker, as processes
    plugin    the fixtures of pytest; loaded in every run of pytest, so it imports nothing of this

Nothing is imported before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tarsy_tasks.testing.canned import UNANSWERED, Answer, InTurn, RecordedCall
    from tarsy_tasks.testing.server import ScriptedServer
    from tarsy_tasks.testing.stack import TarsyStack
    from tarsy_tasks.testing.stub import AsyncStubToolExecutor, StubToolExecutor

__all__ = [
    "UNANSWERED",
    "Answer",
    "AsyncStubToolExecutor",
    "InTurn",
    "RecordedCall",
    "ScriptedServer",
    "StubToolExecutor",
    "TarsyStack",
]

_MODULES = {
    "UNANSWERED": "canned",
    "Answer": "canned",
    "AsyncStubToolExecutor": "stub",
    "InTurn": "canned",
    "RecordedCall": "canned",
    "ScriptedServer": "server",
    "StubToolExecutor": "stub",
    "TarsyStack": "stack",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

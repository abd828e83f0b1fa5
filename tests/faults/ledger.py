"""What a server wrote down on disk, and the 64 calls that are in flight when it fails."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tarsy_tasks import Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.agent.pending_call import PendingCall
from tests.processes import wait_until
from tests.servers import witness_stdio

__all__ = ["IN_FLIGHT", "UNSAFE", "Ledger", "check_answers", "submit_calls", "wait_for_runs", "witness"]

IN_FLIGHT = 64
UNSAFE = "add"
"""Of the witnesses' tools this one has no hint; `look` is `readOnlyHint`, `renew` `idempotentHint`."""


class Ledger:
    """The file that a witness appends to; it outlives the witness.

    Args:
        path: Need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, *begin: str) -> list[list[str]]:
        """The lines that begin with these words."""
        text = self.path.read_text() if self.path.exists() else ""
        lines = [line.split(" ") for line in text.splitlines()]
        return [line for line in lines if line[: len(begin)] == [*begin]]

    @property
    def starts(self) -> int:
        return len(self.lines("start"))

    def runs(self, *tool: str) -> Counter[str]:
        """How often each key was executed."""
        return Counter(line[2] for line in self.lines("run", *tool))


def witness(ledger: Ledger, *options: str, **settings: Any) -> dict[str, Any]:
    """The configuration of a stdio server that writes into `ledger`."""
    # Without `site` and without the environment, Python starts in a tenth of the time.
    arguments = ["-S", "-E", witness_stdio.__file__, str(ledger.path), *options]
    return {"command": sys.executable, "args": arguments, **settings}


def submit_calls(
    tools: ToolExecutor, server: str, keys: Sequence[str], kinds: Sequence[str] = ("look", UNSAFE)
) -> list[PendingCall]:
    """One call a key, its tool from `kinds` in turn."""
    return [
        tools.submit(ToolCall(id=key, name=f"{server}.{kinds[number % len(kinds)]}", arguments={"key": key}))
        for number, key in enumerate(keys)
    ]


def check_answers(results: Sequence[ToolResult], ledger: Ledger, *, lost: Sequence[str] | None = None) -> None:
    """All were answered before their deadline; what is harmless to repeat is `ok`; what is not ran at most once, and is
    `unknown` where it may have run.

    Args:
        lost: Keys of the unsafe calls that have to be `unknown`; None: whichever.
    """
    ran = ledger.runs()
    for result in results:
        if result.name.endswith(f".{UNSAFE}"):
            assert ran[result.call_id] <= 1, f"{result.call_id} ran {ran[result.call_id]} times"
            assert result.outcome in (Outcome.OK, Outcome.UNKNOWN), result.content
            if lost is not None:
                assert (result.outcome is Outcome.UNKNOWN) == (result.call_id in lost), result.content
        else:
            assert result.outcome is Outcome.OK, result.content
        if result.outcome is Outcome.OK:
            assert result.content == result.call_id
            assert ran[result.call_id] >= 1


def wait_for_runs(ledger: Ledger, count: int) -> None:
    wait_until(lambda: len(ledger.lines("run")) >= count, f"{count} calls run in the server")

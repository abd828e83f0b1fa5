"""The replay rule as a table: may a call that may have run be sent again?"""

from typing import Any, Literal

import pytest

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.worker.calls.invocation import may_replay

READ_ONLY = {"readOnlyHint": True}
IDEMPOTENT = {"idempotentHint": True}
NEITHER = {"readOnlyHint": False, "idempotentHint": False}
DESTRUCTIVE = {"readOnlyHint": True, "destructiveHint": True}
"""`destructiveHint` has a meaning only when `readOnlyHint` is false."""

Replay = Literal["hinted", "always", "never"]


@pytest.mark.parametrize(
    ("hints", "replay", "idempotent_tools", "expected"),
    [
        ({}, "hinted", [], False),
        (NEITHER, "hinted", [], False),
        (READ_ONLY, "hinted", [], True),
        (IDEMPOTENT, "hinted", [], True),
        (DESTRUCTIVE, "hinted", [], True),
        ({"destructiveHint": False}, "hinted", [], False),
        ({"openWorldHint": True}, "hinted", [], False),
        # A hint is true or it is none.
        ({"readOnlyHint": "true"}, "hinted", [], False),
        ({"readOnlyHint": 1}, "hinted", [], False),
        ({"readOnlyHint": None}, "hinted", [], False),
        # The configuration may say so for tools that do not.
        ({}, "hinted", ["get_pods"], True),
        ({}, "hinted", ["get_*"], True),
        ({}, "hinted", ["GET_*"], False),
        ({}, "hinted", ["*_nodes", "get_?ods"], True),
        ({}, "hinted", ["pods"], False),
        ({}, "hinted", ["k8s.get_*"], False),
        (NEITHER, "hinted", ["*"], True),
        # `always` and `never` ask nobody.
        ({}, "always", [], True),
        (NEITHER, "always", [], True),
        (READ_ONLY, "never", [], False),
        (IDEMPOTENT, "never", ["get_*"], False),
        ({}, "never", [], False),
    ],
)
def test_a_call_that_may_have_run_is_sent_again_only_if_harmless(
    hints: dict[str, Any], replay: Replay, idempotent_tools: list[str], expected: bool
) -> None:
    tool = ToolDefinition(name="k8s.get_pods", server="k8s", tool="get_pods", annotations=hints)
    server = ServerConfig(name="k8s", command="kubectl-mcp", replay=replay, idempotent_tools=idempotent_tools)
    assert may_replay(tool, server) is expected

"""What an executor says of names that models make up, before anything is sent."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks import ToolExecutor
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.config import load_config

POLICY = {
    "agents": {"*": {"allow": ["desk.*"], "deny": ["desk.order"], "capabilities": ["mcp_desk"]}},
    "limits": [{"rate": "1/h"}, {"tools": ["desk.close"], "calls_per_day": 0}],
}
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolExecutor]:
    directory: Path = tmp_path_factory.mktemp("agent")
    config, policy = directory / "mcp.json", directory / "policy.json"
    config.write_text(json.dumps({"mcpServers": {"desk": {"command": "x"}, "vault": {"command": "x"}}}))
    policy.write_text(json.dumps(POLICY))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TARSY_MCP_CONFIG", str(config))
        environment.setenv("TARSY_POLICY", str(policy))
        with closing(build_app({"broker_url": NOWHERE, "result_backend": NOWHERE})) as app:
            app.mcp_config = load_config(config)
            yield ToolExecutor(app=app)


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("desk.echo", "policy", ""),
        ("desk.écho", "policy", ""),  # a tool may have any name
        ("desk.order", "policy", 'agents["*"].deny[0]'),
        ("desk.Order", "policy", 'agents["*"].deny[0]'),
        ("desk.ｏrder", "policy", 'agents["*"].deny[0]'),
        ("vault.echo", "policy", 'agents["*"].allow'),
        ("desk.close", "policy", "limits[1]"),
        ("ｄesk.echo", "selection", "desk"),
        ("dеsk.echo", "selection", "desk"),  # the second letter is Cyrillic
        ("DESK.echo", "selection", "desk"),
        ("desk\u200b.echo", "selection", "desk"),
        ("desk.", "selection", "desk."),
        ("", "selection", ""),
        ("\ud800", "selection", ""),
        ("x" * 100_000, "selection", ""),
    ],
)
def test_look_alikes_of_names_are_denied_with_a_reason(
    tools: ToolExecutor, name: str, source: str, reason: str
) -> None:
    found = tools.can_execute(name)
    assert (bool(found), found.source) == (name in ("desk.echo", "desk.écho"), source)
    assert reason in found.reason
    assert len(found.reason) < 5000
    found.reason.encode()  # it goes to a model


@given(st.text(max_size=30) | st.text("desk.vault_order ÉｏK", max_size=30))
def test_no_name_is_too_strange_to_be_decided(tools: ToolExecutor, name: str) -> None:
    found = tools.can_execute(name)
    assert found.reason
    if found:
        assert name.startswith(("desk", "mcp_desk"))

"""Files as clients write them are loaded as they are: each server, and the line about what has no meaning here."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from tarsy_tasks.cli import main
from tarsy_tasks.config import describe_unused, load_config

DATA = Path(__file__).parent.parent / "data"
FILES = sorted((DATA / "clients").iterdir())
EXPECTED = dict(re.findall(r"^# (\S+)\n((?:(?!# ).+\n|\n)*)", (DATA / "clients.txt").read_text("utf-8"), re.MULTILINE))


def flatten(value: Any, at: str = "") -> list[str]:
    """A value as `key.key=text`."""
    if isinstance(value, dict):
        return [each for key, inner in value.items() for each in flatten(inner, f"{at}.{key}" if at else key)]
    shown = value.get_secret_value() if isinstance(value, SecretStr) else value
    return [f"{at}={' '.join(map(str, shown)) if isinstance(shown, list) else shown}".replace("\n", "⏎")]


def describe(path: Path) -> str:
    """What `tests/data/clients.txt` has of a file."""
    lines: list[str] = []
    for server in load_config(path).servers.values():
        lines.append(f"{server.name} {server.transport}")
        lines += [
            f"  {each}" for each in flatten(server.model_dump(exclude_defaults=True, exclude={"name", "transport"}))
        ]
    lines += [line.removeprefix(str(path)).lstrip(" :") for line in describe_unused(path)]
    return "\n".join(lines).replace(str(DATA), "DATA").strip()


NAMED = (
    *("claude_desktop", "claude_code", "cursor", "vscode", "zed", "windsurf", "cline", "gemini", "codex", "goose"),
    *("continue", "librechat", "opencode", "tarsy", "seed"),
)
"""Clients whose files docs/configuration.md says to work as they are."""


def test_the_clients_that_are_named_have_files_here() -> None:
    assert len(FILES) >= 24
    assert {path.name for path in FILES} == EXPECTED.keys()
    assert [client for client in NAMED if not any(path.name.startswith(client) for path in FILES)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_a_client_works_as_it_is(path: Path) -> None:
    assert describe(path) == EXPECTED[path.name].strip()


def test_a_check_says_what_is_ignored() -> None:
    path = DATA / "clients" / "kiro.json"
    shown = CliRunner().invoke(main, ["config", "check", str(path)])
    assert "ignored, without a meaning here: `autoApprove`, `disabledTools`" in shown.stderr
    as_json = CliRunner().invoke(main, ["config", "check", str(path), "--json"])
    assert json.loads(as_json.stdout)["ignored"] == describe_unused(path)

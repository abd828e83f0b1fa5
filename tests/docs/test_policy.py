"""The page about policies: its commands print what it shows, with the policy that it shows."""

import re
import shlex
from pathlib import Path

from tests.cli.commands import clean_environment, run_command
from tests.docs.blocks import DOCS, read_blocks

_VERSION = re.compile(r"(?m)^policy [0-9a-f]{12} of")


def test_what_policy_check_prints_is_on_the_page(tmp_path: Path) -> None:
    blocks = read_blocks(DOCS / "policy.md")
    (tmp_path / "mcp.json").write_text(blocks[0].code)
    environment = clean_environment(TARSY_MCP_CONFIG="mcp.json")
    shown = "".join(block.code for block in blocks if block.language == "console")
    runs = [part.partition("\n") for part in re.split(r"(?m)^\$ ", shown)[1:]]
    assert len(runs) >= 5
    for command, _, output in runs:
        done = run_command(*shlex.split(command)[1:], environment=environment, cwd=tmp_path)
        assert _VERSION.sub("policy 000000000000 of", done.stdout) == output

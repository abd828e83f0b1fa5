"""What `doctor` says of the sandbox, on this kernel and on a poorer one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import TARSY_TASKS, clean_environment
from tests.poorer_kernel import LANDLOCK, UNSHARE, without
from tests.processes import free_port
from tests.servers import escaping

SERVER = {"command": sys.executable, "args": ["-S", "-E", escaping.__file__]}
SANDBOX = {"read": [str(Path(escaping.__file__).parent)]}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


def findings(directory: Path, server: dict[str, Any], *refused: int) -> list[tuple[str, str, str]]:
    """Of the sandbox and of the server's start: what was checked, how bad it is, text and remedy."""
    (directory / "mcp.json").write_text(json.dumps({"mcpServers": {"own": server}}))
    environment = clean_environment(
        TARSY_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0", TARSY_RUN_DIR=str(directory / "run")
    )
    command = [*(without(*refused) if refused else []), TARSY_TASKS, "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory, timeout=60)
    return [
        (each["check"], each["severity"], f"{each['text']} REMEDY {each['remedy']}")
        for each in json.loads(done.stdout)["findings"]
        if each["check"] in ("sandbox", "start of own")
    ]


def test_a_complete_kernel_is_fine(tmp_path: Path) -> None:
    (check, severity, text), start = findings(tmp_path, {**SERVER, "sandbox": {**SANDBOX, "required": True}})
    assert (check, severity) == ("sandbox", "ok"), text
    assert start[1] == "ok", start


def test_what_the_kernel_lacks_is_a_warning(tmp_path: Path) -> None:
    (check, severity, text), start = findings(tmp_path, {**SERVER, "sandbox": SANDBOX}, UNSHARE)
    assert (check, severity) == ("sandbox", "warning")
    assert "other processes are visible" in text
    assert "own will start without that REMEDY allow unprivileged user namespaces" in text
    assert start[1] == "ok", start


def test_what_a_required_sandbox_lacks_is_an_error(tmp_path: Path) -> None:
    found = findings(tmp_path, {**SERVER, "sandbox": {**SANDBOX, "required": True}}, UNSHARE, LANDLOCK)
    assert [each[:2] for each in found] == [("sandbox", "error"), ("sandbox", "error"), ("start of own", "error")]
    assert "the kernel has no Landlock; so own will not start REMEDY use Linux 5.13" in found[0][2]
    assert "servers.own.sandbox: it is required, but incomplete on this machine" in found[2][2]


def test_it_is_only_a_note_when_nobody_needs_it(tmp_path: Path) -> None:
    (check, severity, _), _start = findings(tmp_path, SERVER, UNSHARE)
    assert (check, severity) == ("sandbox", "note")

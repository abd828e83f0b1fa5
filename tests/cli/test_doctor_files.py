"""`doctor` on files with secrets that other users of the machine can read, change or replace."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import clean_environment, run_command
from tests.processes import free_port

SECRET = "hunter2-c0ffee"
_NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every user gets to; that of `tmp_path` is closed."""
    with tempfile.TemporaryDirectory() as name:
        found = Path(name)
        found.chmod(0o755)
        if not all(each.stat().st_mode & 0o001 for each in found.resolve().parents):
            pytest.skip("the temporary directory of this machine is closed to other users")
        (found / "own").mkdir(mode=0o755)
        for file in ("token", ".env", "redis", "own/key"):
            (found / file).write_text(f"A={SECRET}\n")
            (found / file).chmod(0o600)
        yield found


def findings(folder: Path, directory: Path, **environment: str) -> list[dict[str, str]]:
    """Those of the check, with all files in use."""
    away = {"command": str(directory / "none")}
    servers: dict[str, Any] = {
        "one": {**away, "env": {"TOKEN": f"${{file:{folder}/token}}"}, "variables_file": f"{folder}/.env"},
        "two": {**away, "env": {"TOKEN": "${OTHER}", "KEY": f"${{file:{folder}/own/key}}"}},
        "off": {**away, "env": {"TOKEN": f"${{file:{folder}/none}}"}, "enabled": False},
    }
    (directory / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    environment = clean_environment(
        TARSY_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0",
        TARSY_RUN_DIR=str(directory / "run"),
        TARSY_ALERT_WEBHOOK_FILE=str(folder / "redis"),
        OTHER_FILE=str(folder / "token"),
        **environment,
    )
    done = run_command("doctor", "--json", environment=environment, cwd=directory)
    assert SECRET not in done.stdout + done.stderr
    return [each for each in json.loads(done.stdout)["findings"] if each["check"] == "secrets"]


def write_webhook(folder: Path) -> None:
    (folder / "redis").write_text("http://127.0.0.1:9/hook\n")


def test_files_that_are_closed_to_others_are_fine(folder: Path, tmp_path: Path) -> None:
    write_webhook(folder)
    (found,) = findings(folder, tmp_path)
    assert (found["severity"], "the 4 files with secrets" in found["text"]) == ("ok", True)


@pytest.mark.parametrize(
    ("file", "reader"),
    [
        ("token", "server one, server two"),
        (".env", "server one"),
        ("own/key", "server two"),
        ("redis", "TARSY_ALERT_WEBHOOK_FILE"),
    ],
)
def test_a_file_that_others_can_use_is_named(folder: Path, tmp_path: Path, file: str, reader: str) -> None:
    write_webhook(folder)
    path = folder / file
    path.chmod(0o606)
    written, read = findings(folder, tmp_path)
    where = f"{path} ({reader}): every user of this machine can"
    assert (written["severity"], written["remedy"]) == ("error", f"chmod o-w {path}")
    assert written["text"].startswith(f"{where} write it")
    assert (read["severity"], read["remedy"]) == ("warning", f"chmod o-r {path}")
    assert read["text"] == f"{where} read it"


def test_a_file_in_a_closed_directory_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    write_webhook(folder)
    (folder / "own" / "key").chmod(0o644)
    (folder / "own").chmod(0o750)
    (found,) = findings(folder, tmp_path)
    assert found["severity"] == "ok"


def test_a_directory_that_others_can_write_to_is_named(folder: Path, tmp_path: Path) -> None:
    write_webhook(folder)
    (folder / "own").chmod(0o707)
    (found,) = findings(folder, tmp_path)
    assert (found["severity"], found["remedy"]) == ("error", f"chmod o-w {folder.resolve() / 'own'}")
    assert "own/key (server two): every user of this machine can replace it" in found["text"]
    (folder / "own").chmod(0o1777)
    (found,) = findings(folder, tmp_path)
    assert found["severity"] == "ok"


def test_a_directory_of_trusted_certificates_is_checked(folder: Path, tmp_path: Path) -> None:
    write_webhook(folder)
    (folder / "trusted").mkdir()
    (folder / "trusted").chmod(0o1777)
    trusted, rest = findings(folder, tmp_path, TARSY_SIGNING_TRUSTED=str(folder / "trusted"))
    assert (trusted["severity"], trusted["remedy"]) == ("error", f"chmod o-w {folder / 'trusted'}")
    assert rest["severity"] == "ok"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_named(folder: Path, tmp_path: Path) -> None:
    write_webhook(folder)
    os.chown(folder / "token", _NOBODY, _NOBODY)
    os.chown(folder / "own", _NOBODY, _NOBODY)
    token, key = findings(folder, tmp_path)
    for found, name in ((token, "token"), (key, "own/key")):
        assert found["severity"] == "warning"
        assert f"{folder / name} (" in found["text"]
        assert f"belongs to another user of this machine (uid {_NOBODY})" in found["text"]

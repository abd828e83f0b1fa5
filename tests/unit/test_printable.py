"""What a person does not see is shown, and nothing else is touched."""

import json
import subprocess
import sys

import pytest

from tarsy_tasks.cli.output import dump_json
from tarsy_tasks.telemetry.printable import make_visible

LOGS = r"""
import logging
from tarsy_tasks.worker.reporting.log_masking import mask_log
from tarsy_tasks.worker.maskers import build_masker

logging.basicConfig(level=logging.INFO, format="%(message)s")
mask_log(build_masker())
try:
    raise ValueError("\x1b[2J raised")
except ValueError:
    logging.exception("it said \x1b[2J%s", "\u202e\nand more")
logging.getLogger("celery.app.trace").info("returned %s", "a\x1b[2J\nfaked line")
"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, naïve, 日本語, שלום, 🙂", None),
        ("\x1b[2J\x07\x00", r"\x1b[2J\x07\x00"),
        ("\x9b2J\x7f", r"\x9b2J\x7f"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("user\u202etxt.exe\u2066", r"user\u202etxt.exe\u2066"),
        ("in\u200bvisible\ufeff\u00ad", r"in\u200bvisible\ufeff\xad"),
        ("tag\U000e0041", r"tag\U000e0041"),
        ("half \ud83d", r"half \ud83d"),
    ],
)
def test_hidden_characters_are_written_as_in_python(text: str, shown: str | None) -> None:
    assert make_visible(text) == (text if shown is None else shown)


def test_line_breaks_may_stay() -> None:
    assert make_visible("a\r\nb\tc", keep="\n\t") == "a\\r\nb\tc"


def test_json_stays_the_same_value() -> None:
    value = {"name": "a\x1b\n\x9b\u202e\U000e0041 日本語", "more": [1, None]}
    text = dump_json(value, indent=2)
    assert json.loads(text) == value
    assert "日本語" in text
    assert make_visible(text, keep="\n") == text


def test_the_log_of_a_worker_has_no_control_characters() -> None:
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert lines[:2] == [r"it said \x1b[2J\u202e", "and more"]
    assert lines[-2:] == [r"ValueError: \x1b[2J raised", r"returned a\x1b[2J\nfaked line"]

"""What a server writes to stderr reaches the log, and error texts, without its secrets."""

import logging

import pytest

from tarsy_tasks.masking import MASK
from tarsy_tasks.worker.masking import build_masker
from tarsy_tasks.worker.transport.server_output import ServerOutput


@pytest.fixture
def output(caplog: pytest.LogCaptureFixture) -> ServerOutput:
    caplog.set_level(logging.INFO, "tarsy_tasks.server.db")
    return ServerOutput("db", build_masker())


def test_lines_and_last_words_are_masked(output: ServerOutput, caplog: pytest.LogCaptureFixture) -> None:
    output.record_line(b"connecting with password: hunter2hunter2")
    assert caplog.messages == [f"stderr: connecting with password: {MASK}"]
    assert output.last_words() == f"connecting with password: {MASK}"


def test_of_a_private_key_only_its_borders_are_seen(output: ServerOutput, caplog: pytest.LogCaptureFixture) -> None:
    lines = [
        "bad key:",
        "-----BEGIN PRIVATE KEY-----",
        *["MIIEvQIBADANBgkqhkiG9w"] * 3,
        "-----END PRIVATE KEY-----",
        "bye",
    ]
    for line in lines:
        output.record_line(line.encode())
    assert caplog.messages == [f"stderr: {MASK if line.startswith('MII') else line}" for line in lines]


@pytest.mark.parametrize("place", range(1960, 2001, 4))
def test_no_half_of_a_token_is_left_where_a_long_line_is_cut(
    output: ServerOutput, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    output.record_line(f"{'word ' * (place // 5)}ghp_0123456789abcdefghijklmnopqrstuvwxyz {'word ' * 100}".encode())
    for told in (caplog.text, output.last_words()):
        assert "word word" in told
        assert "ghp_" not in told

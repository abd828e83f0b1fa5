"""What a server writes to stderr reaches the log, and error texts, without its secrets."""

import logging
import time

import pytest

from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.masker import Masker
from tarsy_tasks.masking.masker import build_masker as build_known_masker
from tarsy_tasks.worker.maskers import build_masker
from tarsy_tasks.worker.transport.server_output import ServerOutput

WHO = "MCP server db, stderr: "
LINES_PER_S = 50
"""As many are logged if they cost little."""


class DearMasker(Masker):
    """Masking that takes longer than all of a second's lines may."""

    def mask(self, text: str) -> str:
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass
        return text


@pytest.fixture
def output(caplog: pytest.LogCaptureFixture) -> ServerOutput:
    caplog.set_level(logging.INFO, "tarsy_tasks.server.db")
    return ServerOutput("db", build_masker())


def test_lines_and_last_words_are_masked(output: ServerOutput, caplog: pytest.LogCaptureFixture) -> None:
    output.record_line(b"connecting with password: hunter2hunter2")
    assert caplog.messages == [f"{WHO}connecting with password: {MASK}"]
    assert output.last_lines() == f"connecting with password: {MASK}"


def test_the_last_words_are_not_those_of_npm(output: ServerOutput) -> None:
    lines = [
        "npm WARN deprecated a@1.0.0",
        "no licence",
        *["npm warn deprecated b@2.0.0", "npm notice new version"] * 9,
    ]
    for line in lines:
        output.record_line(line.encode())
    assert output.last_lines() == "no licence"


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
    assert caplog.messages == [f"{WHO}{MASK if line.startswith('MII') else line}" for line in lines]


@pytest.mark.parametrize("place", range(1960, 2001, 4))
def test_no_half_of_a_token_is_left_where_a_long_line_is_cut(
    output: ServerOutput, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    output.record_line(f"{'word ' * (place // 5)}ghp_0123456789abcdefghijklmnopqrstuvwxyz {'word ' * 100}".encode())
    for told in (caplog.text, output.last_lines()):
        assert "word word" in told
        assert "ghp_" not in told


@pytest.mark.parametrize(
    ("lines", "secrets"),
    [
        (['Content-Disposition: form-data; name="password"', "", "hunter-of-forms", "--x--"], ["hunter"]),
        (
            ["kind: Secret", "data:", "  walnut: d2FsbnV0LXRyZWU=", "stringData:", "  b: plain walnut nine", "type: x"],
            ["d2Fsbn", "plain walnut"],
        ),
        (["apiVersion: v1", "data:", "  walnut: d2FsbnV0LXRyZWU=", "kind: Secret"], ["d2Fsbn"]),
        (["password:", "  hunter-two-lines", "bye"], ["hunter"]),
        (["password=", "hunter2-two-lines", "bye"], ["hunter"]),
        (["- name: DB_PASSWORD", "  value: hunter-of-pairs", "bye"], ["hunter"]),
        (["NAME   PASSWORD", "bob    hunter-of-tables", "bye"], ["hunter"]),
        (["user,password", "bob,hunter-of-commas", "bye"], ["hunter"]),
    ],
)
def test_a_line_is_masked_with_those_above_in_view(
    output: ServerOutput, caplog: pytest.LogCaptureFixture, lines: list[str], secrets: list[str]
) -> None:
    for line in lines:
        output.record_line(line.encode())
        for secret in secrets:
            assert secret not in output.last_lines()
    assert len(caplog.messages) == len([*filter(None, lines)])
    assert caplog.messages[-1] == f"{WHO}{lines[-1]}"
    for secret in secrets:
        assert secret not in caplog.text


def test_half_a_known_secret_is_not_left_where_a_line_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tarsy_tasks.server.db")
    masker = build_known_masker(known=KnownSecrets(["a passphrase, of (many) words!"]))
    for place in range(1960, 2001, 3):
        ServerOutput("db", masker).record_line(f"{'x' * place} a passphrase, of (many) words! {'y' * 9000}".encode())
    assert "passphr" not in caplog.text
    assert max(map(len, caplog.messages)) <= 2000 + len(WHO)


@pytest.mark.parametrize("secret", ["a passphrase, of (many) words!", "ghp_0123456789abcdefghijklmnopqrstuvwxyz"])
def test_half_a_secret_is_not_left_in_the_last_words_either(secret: str) -> None:
    masker = build_known_masker(known=KnownSecrets(["a passphrase, of (many) words!"]))
    for place in range(7960, 8001, 3):
        output = ServerOutput("db", masker)
        output.record_line(f"{'x' * place} {secret} {'y' * 9000}".encode())
        assert secret[:5] not in output.last_lines()


def test_no_line_of_a_known_multiline_secret_is_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tarsy_tasks.server.db")
    lines = ["begin", *[f"q7Xv2mT9cLr4Zk8B{number}" * 2 for number in range(5)], "end"]
    output = ServerOutput("db", build_known_masker(known=KnownSecrets(["\n".join(lines)])))
    for line in lines:
        output.record_line(f"  {line}".encode())
    assert caplog.messages[0] == f"{WHO}  begin"
    assert "q7Xv" not in caplog.text


@pytest.mark.parametrize("place", [12, 17, 25, 32])
def test_a_known_secret_is_not_left_over_two_lines(caplog: pytest.LogCaptureFixture, place: int) -> None:
    caplog.set_level(logging.INFO, "tarsy_tasks.server.db")
    secret = "q7Xv2mT9cLr4Zk8BqLr4Zk8Bq7Xv2mT9cAb"
    output = ServerOutput("db", build_known_masker(known=KnownSecrets([secret])))
    for line in (f"sent: {secret[:place]}", f"{secret[place:]} and more", f"ends with {secret[:6]}"):
        output.record_line(line.encode())
    assert caplog.messages == [f"{WHO}sent: {MASK}", f"{WHO}{MASK} and more", f"{WHO}ends with {secret[:6]}"]
    assert output.last_lines() == f"sent: {MASK}\n{MASK} and more\nends with {secret[:6]}"


def test_lines_that_are_dear_to_mask_are_logged_less_often(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tarsy_tasks.server.db")
    output = ServerOutput("db", DearMasker())
    for number in range(LINES_PER_S):
        output.record_line(b"line %d" % number)
    assert 0 < len(caplog.messages) < LINES_PER_S / 2
    assert output.last_lines().endswith(f"line {LINES_PER_S - 1}")

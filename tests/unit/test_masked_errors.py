"""Texts that are bounded are masked first: half a secret would not be known for one."""

import httpx2
import pytest
from mcp import MCPError
from mcp_types import INTERNAL_ERROR

from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.masker import build_masker
from tarsy_tasks.worker.sessions.call_errors import call_error, describe_error
from tarsy_tasks.worker.sessions.recovery import classify_error
from tarsy_tasks.worker.transport.transport_errors import http_status

KNOWN = "kn0wn passphrase, of (many) words: Q7wE5rT3yU1iO9!"
masker = build_masker(known=KnownSecrets([KNOWN]))


@pytest.mark.parametrize("place", range(1940, 2001, 3))
def test_no_half_of_a_secret_is_left_in_an_error_text(place: int) -> None:
    text = f"{'x' * place}{KNOWN}{'y' * 9000}"
    for error in (MCPError(INTERNAL_ERROR, text), ValueError(text)):
        described = describe_error(error, masker)
        assert len(described) < 2100
        assert "kn0w" not in described
        assert "pass" not in described


@pytest.mark.parametrize("place", range(100, 301, 9))
def test_no_half_of_a_secret_is_left_in_an_http_error_body(place: int) -> None:
    body = f"{'x' * place}{KNOWN}{'y' * 9000}".encode()
    error = MCPError.from_error_data(http_status(httpx2.Response(502), body))
    described = describe_error(error, masker)
    assert described.startswith("HTTP 502 Bad Gateway: xxx")
    assert len(described) <= 300
    assert "kn0w" not in described
    assert "pass" not in described


@pytest.mark.parametrize("length", [10, 2000, 100_000])
def test_the_start_of_a_masked_text_holds_no_half_of_a_secret(length: int) -> None:
    key = f"-----BEGIN PRIVATE KEY-----\n{'MIIEvQIBADANBgkq' * 200}\n-----END PRIVATE KEY-----\n"
    for before in (length - 20, length + 3000, length + 4000):
        masked = masker.mask_start(f"{'x' * before}\n{key}{KNOWN}{'z' * 200_000}", length)
        assert len(masked) <= length
        assert "MIIE" not in masked
    many = masker.mask_start(f"{key * 40}{'password: hunter2hunter2 ' * 9000}", length)
    assert "hunter" not in many
    assert "MIIE" not in many


@pytest.mark.parametrize(
    "error",
    [
        MCPError(INTERNAL_ERROR, "password: hunter2x, write `${TOKEN:-default}`"),
        MCPError(-31991, "HTTP 401 Unauthorized: password: hunter2x", {"status": 401}),
        ValueError("password: hunter2x"),
    ],
)
def test_of_an_error_text_only_the_words_of_a_server_are_masked(error: Exception) -> None:
    made = call_error(error, classify_error(error), "k8s", "get_token", 3.0, " Its last output: 'x'.", masker)
    assert "hunter2x" not in made.text
    assert "password: __MASKED__" in made.text
    # A masker that knows more words than this one leaves it: it is masked already.
    assert build_masker(known=KnownSecrets(["get_token"])).mask(made.text) == made.text

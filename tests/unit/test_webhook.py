"""The webhook: signed, tried again, given up, and never in the way."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pydantic import SecretStr

from tarsy_tasks.worker.reporting.alerts import Alert
from tarsy_tasks.worker.reporting.webhook import Webhook, sign
from tests.processes import wait_until
from tests.servers.webhook_receiver import receiver

ALERT = Alert(id="a-1", server="k8s", status="unhealthy", at=1.0, lasted_s=2.0, error="it broke", worker="w1")
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


@contextmanager
def webhook(url: str, secret: str | None = SECRET) -> Iterator[Webhook]:
    hook = Webhook(url, SecretStr(secret) if secret else None)
    yield hook
    hook.close()


def test_a_third_attempt_delivers_an_alert_with_a_signature() -> None:
    with receiver(503, 429, 204) as server, webhook(server.url) as hook:
        hook.send(ALERT)
        wait_until(lambda: len(server.received) == 3, "three attempts")
    bodies = {body for _, body in server.received}
    assert len(bodies) == 1
    (body,) = bodies
    assert json.loads(body) == {
        "type": "server.unhealthy",
        "text": "MCP server k8s is unhealthy: it broke",
        **ALERT.model_dump(mode="json"),
    }
    for headers, _ in server.received:
        assert headers["webhook-id"] == "a-1"
        timestamp = headers["webhook-timestamp"]
        assert abs(time.time() - int(timestamp)) < 60
        signed = b"a-1." + timestamp.encode() + b"." + body
        digest = hmac.new(b"0123456789abcdef01234567", signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_the_signature_is_that_of_the_standard() -> None:
    body = b'{"test": 2432232314}'
    signature = sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_may_be_any_text() -> None:
    digest = hmac.new("né".encode(), b"id.1.body", hashlib.sha256).digest()
    assert sign("né", "id", 1, b"body") == f"v1,{base64.b64encode(digest).decode()}"


def test_without_a_secret_nothing_is_signed() -> None:
    with receiver(200) as server, webhook(server.url, None) as hook:
        hook.send(ALERT)
        wait_until(lambda: server.received, "it arrives")
    assert "webhook-signature" not in server.received[0][0]


@pytest.mark.parametrize("status", [400, 401, 302])
def test_a_refusal_is_final_and_the_log_shows_no_token(status: int, caplog: pytest.LogCaptureFixture) -> None:
    with receiver(status) as server, webhook(server.url) as hook:
        hook.send(ALERT)
        wait_until(lambda: "did not accept an alert" in caplog.text, "it is logged")
        assert f"status {status}" in caplog.text
        assert "t0psecret" not in caplog.text
    assert len(server.received) == 1


def test_one_that_hangs_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with receiver(0) as server, webhook(server.url) as hook:
        hook.send(ALERT)
        wait_until(lambda: server.received, "it hangs")
        for _ in range(1049):
            hook.send(ALERT)  # returns, or the test's own timeout ends it
        wait_until(lambda: caplog.text.count("too many are waiting") == 50, "what is too much is dropped")
    assert len(server.received) == 1
    assert caplog.text.count("the worker stopped first") == 1000


def test_alerts_of_other_servers_do_not_wait_for_a_failing_one() -> None:
    with receiver(0, 0, 204) as server, webhook(server.url) as hook:
        hook.send(ALERT)
        hook.send(ALERT.model_copy(update={"server": "github"}))
        wait_until(lambda: len(server.received) == 2, "both hang")
        for number in range(20):
            hook.send(ALERT.model_copy(update={"id": f"{number}", "server": f"s{number}"}))
        hook.send(ALERT.model_copy(update={"id": "later"}))
        wait_until(lambda: len(server.received) == 22, "the others arrive", timeout_s=8)
        assert "later" not in {headers["webhook-id"] for headers, _ in server.received}, "one server's come in order"


def test_nobody_there_is_a_failure_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    with receiver(200) as server:
        url = server.url
    hook = Webhook(url, None)
    hook.send(ALERT)
    hook.close()
    wait_until(lambda: "did not accept an alert (ConnectError)" in caplog.text, "it is logged")

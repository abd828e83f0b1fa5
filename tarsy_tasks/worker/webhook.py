"""Alerts to a URL, signed.

Owns the delivery: a thread with a short queue, so that no check ever waits for somebody else's web server. Signatures
are those of https://www.standardwebhooks.com: `webhook-id`, `webhook-timestamp`, and `webhook-signature: v1,` with the
base64 of HMAC-SHA256 over `id.timestamp.body`.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import queue
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

import httpx2
from pydantic import SecretStr
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter
from tenacity.nap import sleep_using_event

from tarsy_tasks.settings import load_settings
from tarsy_tasks.worker.alerts import Alert

__all__ = ["Webhook", "open_webhook", "sign"]

logger = logging.getLogger(__name__)

_QUEUE_LENGTH = 100
_POST_S = 10.0
"""For one attempt as a whole: a server may send its answer byte by byte."""
_ATTEMPTS = 6
_MOST_WAIT_S = 30.0
_CLOSE_S = 3.0
_WORTH_A_RETRY = (408, 425, 429)


class _Refused(Exception):
    """The other side does not want it, now or ever; the text says how it said so."""


class _Failed(Exception):
    """It may go well another time."""


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`.

    Args:
        secret: `whsec_` and base64, as the standard has it, or any other text.
    """
    key = secret.encode()
    if secret.startswith("whsec_"):
        with suppress(ValueError):
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    digest = hmac.new(key, b"%s.%d.%s" % (message_id.encode(), timestamp, body), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class Webhook:
    """Delivers alerts one after the other until `close`.

    Args:
        url: Where to; it may hold a token, so it is never logged whole.
        secret: None: alerts are not signed.
    """

    def __init__(self, url: str, secret: SecretStr | None) -> None:
        self._url = url
        self._secret = secret
        self._where = urlsplit(url).netloc.rpartition("@")[2]
        self._queue: queue.Queue[Alert | None] = queue.Queue(_QUEUE_LENGTH)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="alert-webhook", daemon=True)
        self._thread.start()

    def tell(self, alert: Alert) -> None:
        """Queue an alert; when too many wait already, it is only logged that it was dropped."""
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            why = "it does not keep up"
            logger.error("the webhook at %s did not take an alert (%s): %s", self._where, why, alert)  # noqa: TRY400

    def close(self) -> None:
        """Give what is queued a moment; the first failure ends it."""
        self._closing.set()
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(_CLOSE_S)

    def _deliver_all(self) -> None:
        while (alert := self._queue.get()) is not None:
            try:
                self._deliver(alert)
            except (_Refused, _Failed) as error:
                logger.error("the webhook at %s did not take an alert (%s): %s", self._where, error, alert)  # noqa: TRY400
                if self._closing.is_set():
                    break  # nor will it take the others in the moment that is left
            except Exception:
                logger.exception("the webhook at %s failed", self._where)

    def _deliver(self, alert: Alert) -> None:
        body = json.dumps({"type": f"server.{alert.status}", "text": str(alert), **alert.model_dump(mode="json")})
        Retrying(
            retry=retry_if_exception_type(_Failed),
            wait=wait_exponential_jitter(initial=1, max=_MOST_WAIT_S),
            stop=lambda state: self._closing.is_set() or stop_after_attempt(_ATTEMPTS)(state),
            sleep=sleep_using_event(self._closing),
            reraise=True,
        )(lambda: asyncio.run(self._post(alert.id, body.encode())))

    async def _post(self, alert_id: str, body: bytes) -> None:
        timestamp = int(time.time())
        headers = {
            "content-type": "application/json",
            "user-agent": "tarsy-tasks",
            "webhook-id": alert_id,
            "webhook-timestamp": str(timestamp),
        }
        if self._secret is not None:
            headers["webhook-signature"] = sign(self._secret.get_secret_value(), alert_id, timestamp, body)
        status = 0
        try:
            # What it says beside its status does not matter, so it is not read.
            async with (
                asyncio.timeout(_POST_S),
                httpx2.AsyncClient(timeout=_POST_S) as client,
                client.stream("POST", self._url, content=body, headers=headers) as response,
            ):
                status = response.status_code
        except TimeoutError:
            raise _Failed(f"no answer within {_POST_S:g} s") from None
        except httpx2.InvalidURL:
            raise _Refused("TARSY_ALERT_WEBHOOK is no URL that can be asked") from None
        except httpx2.HTTPError as error:
            raise _Failed(type(error).__name__) from error
        if status >= 500 or status in _WORTH_A_RETRY:
            raise _Failed(f"status {status}")
        if not 200 <= status < 300:
            raise _Refused(f"status {status}")


def open_webhook() -> Webhook | None:
    """The webhook that the settings name, if they do."""
    settings = load_settings()
    url = settings.alert_webhook
    return None if url is None else Webhook(url.get_secret_value(), settings.alert_webhook_secret)

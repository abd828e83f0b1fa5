"""Alerts and other notices to a URL, signed.

Owns the delivery: a thread with an event loop, so that no check waits for the web server, and no notice for one of
another MCP server. Signatures are those of https://www.standardwebhooks.com: `webhook-id`, `webhook-timestamp`, and
`webhook-signature: v1,` with the base64 of HMAC-SHA256 over `id.timestamp.body`.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import threading
import time
from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2
from pydantic import SecretStr
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from tarsy_tasks.settings import WEBHOOK_SECRET_PREFIX, load_settings

__all__ = ["Notice", "Webhook", "open_webhooks", "sign"]

logger = logging.getLogger(__name__)

_MAX_WAITING = 1000
_MAX_PARALLEL = 10
"""In an outage there are many alerts, and a slow web server must get them in time."""
_POST_S = 10.0
"""For one whole attempt: a server may send its answer byte by byte."""
_ATTEMPTS = 6
_MAX_PAUSE_S = 30.0
_CLOSE_S = 3.0
_RETRYABLE = (408, 425, 429)


class Notice(Protocol):
    """What is sent; `str` is a sentence for operators."""

    @property
    def kind(self) -> str:
        """As in `an alert`, for the log."""
        ...

    @property
    def id(self) -> str:
        """The same for what is sent twice."""
        ...

    @property
    def server(self) -> str: ...

    def as_event(self) -> dict[str, Any]:
        """The body of the request."""
        ...


class _Refused(Exception):
    """The web server refuses the notice permanently; the text says how."""


class _Failed(Exception):
    """A later attempt may succeed."""


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`; the secret is `whsec_` and base64, as in the standard, or any other text."""
    encoded = secret.removeprefix(WEBHOOK_SECRET_PREFIX)
    key = secret.encode() if encoded == secret else base64.b64decode(encoded, validate=True)
    digest = hmac.new(key, b"%s.%d.%s" % (message_id.encode(), timestamp, body), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class Webhook:
    """Delivers notices until `close`: those of one MCP server in order, those of several in parallel.

    Its address may contain a token, so only the host is logged.
    """

    def __init__(self, url: str, secret: SecretStr | None, setting: str = "TARSY_ALERT_WEBHOOK") -> None:
        self._url = url
        self._setting = setting
        self._secret = secret
        self._where = urlsplit(url).netloc.rpartition("@")[2]
        self._closing = asyncio.Event()
        self._slots = asyncio.Semaphore(_MAX_PARALLEL)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._deliveries: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    @cached_property
    def _client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(timeout=_POST_S)

    def send(self, notice: Notice) -> None:
        """Deliver a notice; returns at once. When too many wait, it is dropped and logged."""
        try:
            self._loop.call_soon_threadsafe(self._begin, notice)
        except RuntimeError:
            self._log_loss(notice, "the worker has stopped")

    def close(self) -> None:
        """Try each undelivered notice once more, for 3 s."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(2 * _CLOSE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        await self._closing.wait()
        if self._deliveries:
            _, late = await asyncio.wait(self._deliveries, timeout=_CLOSE_S)
            for delivery in late:
                delivery.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if "_client" in vars(self):
            await self._client.aclose()

    def _begin(self, notice: Notice) -> None:
        if len(self._deliveries) >= _MAX_WAITING:
            self._log_loss(notice, "too many are waiting")
            return
        delivery = self._loop.create_task(self._deliver(notice))
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)

    async def _deliver(self, notice: Notice) -> None:
        body = json.dumps(notice.as_event())
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(_Failed),
            wait=wait_exponential_jitter(initial=1, max=_MAX_PAUSE_S),
            stop=lambda state: self._closing.is_set() or stop_after_attempt(_ATTEMPTS)(state),
            sleep=self._pause,
            reraise=True,
        )
        try:
            async with self._turns[notice.server]:
                await attempts(self._post, notice.id, body.encode())
        except (_Refused, _Failed) as error:
            self._log_loss(notice, str(error))
        except asyncio.CancelledError:
            self._log_loss(notice, "the worker stopped first")
        except Exception:
            logger.exception("the webhook at %s failed", self._where)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    def _log_loss(self, notice: Notice, why: str) -> None:
        logger.error("the webhook at %s did not accept %s (%s): %s", self._where, notice.kind, why, notice)

    def _headers(self, notice_id: str, body: bytes) -> dict[str, str]:
        timestamp = int(time.time())
        headers = {
            "content-type": "application/json",
            "user-agent": "tarsy-tasks",
            "webhook-id": notice_id,
            "webhook-timestamp": str(timestamp),
        }
        if self._secret is not None:
            headers["webhook-signature"] = sign(self._secret.get_secret_value(), notice_id, timestamp, body)
        return headers

    async def _post(self, notice_id: str, body: bytes) -> None:
        status, headers = 0, self._headers(notice_id, body)
        try:
            # The body of the response is not needed, so it is not read.
            async with (
                self._slots,
                asyncio.timeout(_POST_S),
                self._client.stream("POST", self._url, content=body, headers=headers) as response,
            ):
                status = response.status_code
        except TimeoutError:
            raise _Failed(f"no answer within {_POST_S:g} s") from None
        except httpx2.InvalidURL:
            raise _Refused(f"{self._setting} is not a valid URL") from None
        except httpx2.HTTPError as error:
            raise _Failed(type(error).__name__) from error
        if status >= 500 or status in _RETRYABLE:
            raise _Failed(f"status {status}")
        if not 200 <= status < 300:
            raise _Refused(f"status {status}")


def open_webhooks() -> tuple[Webhook | None, Webhook | None]:
    """The webhooks of the settings, of alerts and of approvals; None where there is none."""
    settings = load_settings()
    alerts, approvals = settings.alert_webhook, settings.approval_webhook
    return (
        None if alerts is None else Webhook(alerts.get_secret_value(), settings.alert_webhook_secret),
        None
        if approvals is None
        else Webhook(approvals.get_secret_value(), settings.approval_secret, "TARSY_APPROVAL_WEBHOOK"),
    )

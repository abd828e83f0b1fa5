"""A message that is written from a template is, byte for byte, what kombu publishes for the same call."""

import base64
import json
from typing import Any

import pytest
from celery import Celery

from tarsy_tasks.broker.message_template import build_template
from tarsy_tasks.celery_app import TarsyApp, build_app

pytestmark = pytest.mark.keeps_keys
ID = "c84b39f7-ea07-4566-b81c-6795b506cdcf"
INFO = {"v": 1, "call_id": "c1", "name": "desk.order", "deadline": 1795348641.809041, "sent_at": 1795348583.018121}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "an object": ("desk", "order", '{"item": "lamp", "n": 2}', INFO),
    "no arguments": ("desk", "order", None, INFO),
    "a server only": ("desk",),
    "quotes and backslashes": ("desk", 'or"der\\', '"\\" %s %(id)s %% {} \\u0000', {**INFO, "name": '%"%(body)s'}),
    "other scripts": ("desk", "größe", "ключ: 値 🦊", {**INFO, "agent_id": "İ\u2028"}),
    "control characters": ("desk", "order\x00\n", "\x00\x01\x1f\x7f\r\n\t", INFO),
    "half a character": ("desk", "order\ud800", "\udfff", INFO),
    "numbers": ("desk", "order", "x", {**INFO, "deadline": 1e300, "sent_at": 0.1 + 0.2, "n": -0.0, "big": 10**30}),
    "a megabyte": ("desk", "order", "äx" * 500_000, INFO),
}


def publish_with_kombu(app: Any, arguments: tuple[Any, ...], shown: str, garbage_at: float, session: str) -> None:
    message = app.amqp.as_task_v2(ID, "tarsy.call_tool", args=arguments, argsrepr=shown, kwargsrepr="{}")
    message.headers["garbage_at"] = garbage_at
    if session:
        message.headers["session"] = session
    with app.producer_pool.acquire() as producer:
        app.amqp.send_task_message(producer, "tarsy.call_tool", message, queue="mcp.desk")


@pytest.mark.parametrize("what", ARGUMENTS)
@pytest.mark.parametrize(("garbage_at", "session"), [(1795349242.8090372, ""), (1795349242.0, "desk:2b0d")])
def test_it_is_what_kombu_publishes(client: Any, app: TarsyApp, what: str, garbage_at: float, session: str) -> None:
    arguments = ARGUMENTS[what]
    shown = ".".join(arguments[:2])
    publish_with_kombu(app, arguments, shown, garbage_at, session)
    template = build_template(app, "tarsy.call_tool", "mcp.desk", is_isolated=session != "")
    assert template is not None
    [published] = client.lrange("mcp.desk", 0, -1)
    written = template.write(ID, arguments, shown, garbage_at, session)
    assert written.encode() == published
    assert json.loads(base64.b64decode(json.loads(written)["body"]))[0] == list(arguments)


def test_building_it_sends_nothing(client: Any, app: TarsyApp) -> None:
    assert build_template(app, "tarsy.call_tool", "mcp.desk") is not None
    assert client.keys() == []


@pytest.mark.parametrize("settings", [{"task_compression": "gzip"}, {"task_serializer": "yaml"}])
def test_other_forms_are_left_to_kombu(redis_url: str, settings: dict[str, str]) -> None:
    with build_app({"broker_url": redis_url, "result_backend": redis_url, **settings}) as app:
        assert build_template(app, "tarsy.call_tool", "mcp.desk") is None


def test_a_stock_application_is_left_to_kombu(redis_url: str) -> None:
    with Celery("stock", broker=redis_url, backend=redis_url, set_as_current=False) as app:
        assert build_template(app, "tarsy.call_tool", "mcp.desk") is None

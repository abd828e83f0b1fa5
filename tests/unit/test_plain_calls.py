"""Which messages run without a thread: one case for each reason against it."""

import gc
import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals
from celery.worker import state

from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.messages import read_plain_arguments
from tarsy_tasks.broker.task_names import CALL_TOOL
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.worker.process.plain_messages import why_none_is_plain, why_not_plain
from tarsy_tasks.worker.process.task_signals import find_receivers

ARGUMENTS = ["desk", "echo", "{}", {"v": 1}]
NOTHING_FOLLOWS = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
FOLLOWING = {"task": CALL_TOOL}


def message(delivery: Delivery | None, **headers: Any) -> Any:
    given = {"id": "t1", "task": CALL_TOOL, "timelimit": [None, None], "retries": 0, **headers}
    return SimpleNamespace(headers=given, content_type="application/json", content_encoding="utf-8", delivery=delivery)


def test_a_first_delivery_of_a_call_is_plain() -> None:
    assert why_not_plain(message(Delivery("t1", "mcp.desk"))) == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"id": 7},
        {"eta": "2027-01-01T00:00:00"},
        {"expires": "2027-01-01T00:00:00"},
        {"group": "g1"},
        {"parent_id": "p1"},
        {"shadow": "another name"},
        {"ignore_result": True},
        {"stamped_headers": ["tenant"]},
        {"retries": 1},
        {"timelimit": [5, None]},
        {"timelimit": 5},
        {"timelimit": {}},
        {"timelimit": [None, 5]},
    ],
    ids=str,
)
def test_headers_that_need_celerys_tracer(headers: dict[str, Any]) -> None:
    assert why_not_plain(message(Delivery("t1", "mcp.desk"), **headers))


@pytest.mark.parametrize(
    "delivery",
    [
        None,
        Delivery("t1", "mcp.desk", count=2),
        Delivery("t1", "mcp.desk", state=CallState.BEGUN),
        Delivery("t1", "mcp.desk", state=CallState.WITHDRAWN),
    ],
)
def test_a_later_delivery_is_not_plain(delivery: Delivery | None) -> None:
    assert why_not_plain(message(delivery))


def test_a_signed_or_compressed_message_is_not_plain() -> None:
    signed = message(Delivery("t1", "mcp.desk"))
    signed.content_type = "application/data"
    compressed = message(Delivery("t1", "mcp.desk"))
    compressed.content_encoding = "binary"
    assert why_not_plain(signed)
    assert why_not_plain(compressed)


def test_a_revoked_call_is_not_plain() -> None:
    state.revoked.add("t1")
    try:
        assert why_not_plain(message(Delivery("t1", "mcp.desk")))
    finally:
        state.revoked.discard("t1")


@pytest.mark.parametrize(
    "body",
    [
        [ARGUMENTS[:3], {}, NOTHING_FOLLOWS],
        [[*ARGUMENTS, "more"], {}, NOTHING_FOLLOWS],
        [ARGUMENTS, {"call": {}}, NOTHING_FOLLOWS],
        *([ARGUMENTS, {}, {**NOTHING_FOLLOWS, name: [FOLLOWING]}] for name in NOTHING_FOLLOWS),
        [ARGUMENTS, {}],
        {"args": ARGUMENTS},
        "text",
    ],
)
def test_a_body_that_needs_celerys_tracer(body: Any) -> None:
    assert read_plain_arguments(json.dumps([ARGUMENTS, {}, NOTHING_FOLLOWS])) == tuple(ARGUMENTS)
    assert read_plain_arguments(json.dumps(body)) is None
    assert read_plain_arguments("[" * 100_000) is None


@pytest.mark.parametrize(
    ("settings", "task", "options"),
    [
        ({"result_backend": "redis://127.0.0.1:1/2"}, {}, {}),
        ({"result_serializer": "pickle"}, {}, {}),
        ({"accept_content": ["auth"]}, {}, {}),
        ({"result_extended": True}, {}, {}),
        ({}, {"track_started": True}, {}),
        ({}, {"ignore_result": True}, {}),
        ({}, {"acks_late": False}, {}),
        ({}, {"time_limit": 5}, {}),
        ({}, {}, {"soft_timeout": 5}),
    ],
    ids=str,
)
def test_settings_with_which_no_call_is_plain(settings: Any, task: Any, options: Any) -> None:
    url = "redis://127.0.0.1:1/1"
    stock = {"track_started": False, "ignore_result": False, "acks_late": True, "time_limit": None}

    def reason(settings: Any, task: Any, options: Any) -> str:
        app = build_app({"broker_url": url, "result_backend": url, **settings})
        pool = SimpleNamespace(options=options)
        found = SimpleNamespace(**{**stock, "soft_time_limit": None, **task})
        return why_none_is_plain(found, SimpleNamespace(app=app, pool=pool, on_task_message=set()))

    assert reason({}, {}, {}) == ""
    assert reason(settings, task, options)


@pytest.mark.parametrize("name", ["task_received", "task_prerun", "task_postrun", "task_success"])
def test_a_connected_signal_is_named(name: str) -> None:
    def receiver(**_: Any) -> None: ...

    class Receivers:
        def method(self, **_: Any) -> None: ...

        def __call__(self, **_: Any) -> None: ...

    def reason() -> str:
        return why_none_is_plain(None, SimpleNamespace(app=None, pool=SimpleNamespace(options={})))

    signal: Any = getattr(signals, name)
    receivers = Receivers()
    here = f"{__name__}.test_a_connected_signal_is_named.<locals>."
    named = {"receiver": receiver, "Receivers.method": receivers.method, "Receivers": partial(receivers)}
    for qualname, connected in named.items():
        signal.connect(connected)
        try:
            assert reason().endswith(f"{name} ({here}{qualname})")
        finally:
            signal.disconnect(connected)


def test_what_was_connected_and_is_gone_does_not_count() -> None:
    def receiver(**_: Any) -> None: ...

    signals.task_prerun.connect(receiver)
    del receiver
    gc.collect()
    assert find_receivers() == {}

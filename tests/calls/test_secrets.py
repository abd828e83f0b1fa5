"""Passwords that an MCP server tells: none leaves the worker, neither in an answer, nor in Redis, nor in the log."""

import json
import sys
from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from tarsy_tasks import ErrorCode, ToolCall, ToolExecutor
from tests.calls.neighbour import BAD_TIMEOUTS
from tests.conftest import StartWorker
from tests.processes import Worker, free_port, listening
from tests.servers import misbehaving_stdio, misbehaving_web
from tests.servers.misbehaving_stdio import ENCODED_SECRET, SECRET


@pytest.fixture(scope="module")
def http_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    with listening([sys.executable, misbehaving_web.__file__, str(port)], port, tmp_path_factory.mktemp("zoo")):
        yield port


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, http_port: int) -> Worker:
    command = {"command": sys.executable, "args": [misbehaving_stdio.__file__, "tells-secrets"]}
    return start_worker(
        {
            "blab": {**command, "timeouts": BAD_TIMEOUTS | {"connect_s": 15, "call_s": 15}},
            "stillborn": {"command": sys.executable, "args": ["-c", f"raise SystemExit('password: {SECRET}')"]},
            **{
                f"{moment}-{kind}": {
                    "url": f"http://127.0.0.1:{http_port}/http/{moment}/{kind}?password={SECRET}",
                    "timeouts": BAD_TIMEOUTS,
                }
                for moment in ("call", "connect")
                for kind in ("secret-500", "secret-no-json", "secret-stream", "secret-result")
            },
            "unheard": {"url": f"http://127.0.0.1:{free_port()}/?password={SECRET}", "timeouts": BAD_TIMEOUTS},
        }
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("blab.act", None),
        ("blab.refuse", ErrorCode.TOOL_ERROR),
        ("blab.fail", ErrorCode.SERVER_ERROR),
        ("blab.garble", ErrorCode.INVALID_RESULT),
        ("blab.die", ErrorCode.SESSION_LOST),
        ("blab.split", None),
        ("blab.attach", None),
        ("stillborn.act", ErrorCode.SERVER_UNAVAILABLE),
        ("call-secret-500.act", ErrorCode.SESSION_LOST),
        ("call-secret-no-json.act", ErrorCode.SERVER_ERROR),
        ("call-secret-stream.act", ErrorCode.SERVER_ERROR),
        ("call-secret-result.act", ErrorCode.INVALID_RESULT),
        ("connect-secret-500.act", ErrorCode.SERVER_UNAVAILABLE),
        ("connect-secret-no-json.act", ErrorCode.SERVER_UNAVAILABLE),
        ("connect-secret-stream.act", ErrorCode.SERVER_UNAVAILABLE),
        ("connect-secret-result.act", ErrorCode.SERVER_UNAVAILABLE),
        ("unheard.act", ErrorCode.SERVER_UNAVAILABLE),
    ],
)
def test_a_password_from_a_server_does_not_leave_the_worker(
    worker: Worker, redis_url: str, name: str, code: ErrorCode | None
) -> None:
    pending = ToolExecutor(timeout_s=20).submit(ToolCall(id="c", name=name, arguments={"text": ""}))
    result = pending.result()
    assert result.error_code == code, result.content
    with redis.Redis.from_url(redis_url) as client:
        stored = client.get(f"celery-task-meta-{pending.id}")
    assert stored is not None
    for secret in (SECRET[:7], ENCODED_SECRET):
        assert secret not in result.model_dump_json()
        assert secret.encode() not in stored
        assert secret not in worker.log


def test_a_password_in_a_tools_name_does_not_leave_the_worker(worker: Worker, redis_url: str) -> None:
    foreign = Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False)
    name = f"password={SECRET}"
    answer = foreign.send_task("tarsy.call_tool", ["blab", name, {}, {"name": name}], queue="mcp.blab").get(timeout=20)
    assert answer["error_code"] == ErrorCode.UNKNOWN_TOOL
    assert SECRET not in json.dumps(answer)
    assert SECRET not in worker.log


def test_a_password_in_a_tasks_error_does_not_leave_the_worker(worker: Worker, redis_url: str) -> None:
    foreign = Celery("foreign", broker=redis_url, backend=redis_url, set_as_current=False)
    sent = foreign.send_task("tarsy.list_tools", ["blab"], {f"password={SECRET}": 1}, queue="mcp.blab")
    with pytest.raises(Exception, match="unexpected keyword") as failure:
        sent.get(timeout=20)
    assert SECRET not in str(failure.value)
    with redis.Redis.from_url(redis_url) as client:
        stored = client.get(f"celery-task-meta-{sent.id}")
    assert stored is not None
    assert SECRET.encode() not in stored
    assert SECRET not in worker.log


def test_the_password_was_sent_and_masked(worker: Worker) -> None:
    """Without this, the test above would pass for a server that never said it."""
    result = ToolExecutor(timeout_s=20).execute(ToolCall(id="c", name="blab.act", arguments={}))
    assert "password: __MASKED__" in result.content
    assert result.structured == {"db": {"password": "__MASKED__", "dsn": "password=__MASKED__"}}
    worker.wait_for_log("connecting with password: __MASKED__")

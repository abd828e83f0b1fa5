"""Servers that say as much as they can, over each transport: their neighbour is served, and the worker stays small."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.errors import ResultTimeout
from tests.calls.neighbour import HEALTHY
from tests.conftest import StartWorker
from tests.processes import Worker, environment_of, free_port, listening
from tests.servers import boundless_stdio, misbehaving_stdio, misbehaving_web

Transport = Literal["stdio", "http", "sse"]
MAX_BYTES = 1_000_000_000
CALLS = 2
TIMEOUTS = {"call_s": 40, "list_s": 30, "connect_s": 30}
FLOOD_S = 12
"""A call that gets no answer takes as long; one that gets an answer gets it, however busy the machine is."""
OK = {(Outcome.OK, None)}
UNAVAILABLE = {(Outcome.UNAVAILABLE, ErrorCode.SERVER_UNAVAILABLE)}
TOO_LARGE = {(Outcome.TOOL_ERROR, ErrorCode.RESULT_TOO_LARGE)}
TIMEOUT = {(Outcome.TIMEOUT, ErrorCode.CALL_TIMEOUT)}
LISTINGS = {"lists-a-long-description": OK, "lists-very-many": UNAVAILABLE, "says-too-many-values": TOO_LARGE}
KINDS: dict[Transport, dict[str, Any]] = {
    "stdio": {**LISTINGS, "says-an-endless-line": TIMEOUT},
    "http": {
        **LISTINGS,
        "says-an-endless-line": TOO_LARGE,
        "says-an-endless-event": TOO_LARGE,
        "zips-empty-lines": TIMEOUT,
    },
    "sse": {
        **LISTINGS,
        "says-an-endless-event": TIMEOUT,
        "answers-without-end": TOO_LARGE | TIMEOUT,  # the second call waits behind that answer
        "zips-empty-lines": TIMEOUT,
    },
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    with listening([sys.executable, misbehaving_web.__file__, str(port)], port, tmp_path_factory.mktemp("web")):
        yield port


def entry(port: int, transport: Transport, kind: str) -> dict[str, Any]:
    if transport == "stdio":
        server = boundless_stdio if kind in boundless_stdio.KINDS else misbehaving_stdio
        where: dict[str, Any] = {"command": sys.executable, "args": [server.__file__, kind]}
    else:
        where = {"type": transport, "url": f"http://127.0.0.1:{port}/{transport}/call/{kind}"}
    is_flood = KINDS[transport][kind] >= TIMEOUT
    return {**where, "timeouts": {**TIMEOUTS, **({"call_s": FLOOD_S} if is_flood else {})}}


@pytest.mark.parametrize("transport", KINDS)
def test_hostile_servers_leave_their_neighbour_served(
    start_worker: StartWorker, port: int, transport: Transport
) -> None:
    worker = start_worker({**HEALTHY, **{kind: entry(port, transport, kind) for kind in KINDS[transport]}})
    found: dict[str, set[Any]] = {kind: set() for kind in KINDS[transport]}
    with environment_of(worker), ToolExecutor(timeout_s=60) as tools:
        tools.execute("neighbour.echo", {"text": "connect"})
        calls = [(kind, tools.submit(f"{kind}.act", {})) for kind in found for _ in range(CALLS)]
        while calls:
            assert tools.execute("neighbour.echo", {"text": "still here"}).content == "still here"
            kind, pending = calls.pop(0)
            try:
                result = pending.result(timeout_s=0.05)
            except ResultTimeout:
                calls.append((kind, pending))
            else:
                found[kind].add((result.outcome, result.error_code))
    assert found == KINDS[transport]
    assert _peak_bytes(worker) < MAX_BYTES
    worker.stop()


def _peak_bytes(worker: Worker) -> int:
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

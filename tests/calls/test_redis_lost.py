"""Redis goes away while calls are made or under way: every caller is answered in time, and truthfully."""

import asyncio
import json
import time
from pathlib import Path

import pytest
import redis

from tarsy_tasks import AsyncToolExecutor, ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.errors import BrokerUnavailable
from tests.chaos.faults import frozen
from tests.processes import DEMO_SERVER, Worker, environment_of, free_port, wait_until
from tests.valkey import Valkey


def test_a_call_without_redis_is_answered_at_its_deadline(tmp_path: Path) -> None:
    with Valkey() as valkey:
        worker = Worker(tmp_path, {"desk": DEMO_SERVER}, f"{valkey.connection_url}/0")
        try:
            worker.wait_until_ready()
            with environment_of(worker), ToolExecutor(timeout_s=4) as tools:
                assert ToolExecutor(timeout_s=30).list_tools()
                pending = tools.submit(ToolCall(id="1", name="desk.wait", arguments={"seconds": 30}))
                valkey.terminate()
                result = pending.result()
                assert (result.outcome, result.error_code) == (Outcome.TIMEOUT, ErrorCode.NO_ANSWER)
                assert "may have had its effect" in result.content
                valkey.start()
        finally:
            assert worker.stop() == 0, worker.log
    _, lost, outage = worker.log.partition("Connection to broker lost")
    assert lost
    assert "Traceback" not in outage
    assert "DeprecationWarning" not in outage


def test_many_asyncio_calls_without_redis_end_at_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"desk": DEMO_SERVER}}))

    async def run() -> list[BaseException | object]:
        async with AsyncToolExecutor(timeout_s=1) as tools:
            call = ToolCall(id="1", name="desk.echo", arguments={"text": "x"})
            return await asyncio.gather(*(tools.execute(call) for _ in range(40)), return_exceptions=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARSY_MCP_CONFIG", str(tmp_path / "mcp.json"))
        patch.setenv("TARSY_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
        started = time.monotonic()
        found = asyncio.run(run())
        seconds = time.monotonic() - started
    assert {type(error) for error in found} == {BrokerUnavailable}
    assert seconds < 5, "ten times the senders, and not ten times the deadline"


def test_a_worker_can_be_stopped_while_redis_is_frozen(tmp_path: Path) -> None:
    with Valkey() as valkey:
        worker = Worker(
            tmp_path,
            {"desk": DEMO_SERVER},
            f"{valkey.connection_url}/0",
            environment={"TARSY_SHUTDOWN_GRACE_S": "1"},
        )
        try:
            worker.wait_until_ready()
            with environment_of(worker), ToolExecutor(timeout_s=30) as tools:
                assert tools.list_tools()
                for _ in range(3):
                    tools.submit(ToolCall(id="1", name="desk.wait", arguments={"seconds": 20}))
                with redis.Redis.from_url(valkey.connection_url) as client:
                    server = client.info("server")["process_id"]
                    wait_until(lambda: client.zcard(keys.LEASES) == 3, "the worker has the calls")
                with frozen(server):
                    worker.stop(timeout_s=25)
        finally:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()

"""What a worker reports for the dashboard besides numbers: the lines of its servers, and what it runs."""

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.leases import hold_lease, release_lease
from tarsy_tasks.broker.messages import CallMessage
from tarsy_tasks.masking.masker import build_masker
from tarsy_tasks.settings import load_settings
from tarsy_tasks.telemetry.running_calls import REPORTED_CALLS
from tarsy_tasks.telemetry.server_log import KEPT_LINES, LONGEST_LINE, read_server_log
from tarsy_tasks.worker.reporting.audit_writer import Audit
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tarsy_tasks.worker.reporting.running_report import build_running_report
from tarsy_tasks.worker.reporting.server_lines import ServerLines
from tests.processes import free_port

log = logging.getLogger("tarsy_tasks.server.db")


@pytest.fixture
def lines(client: Any) -> Iterator[ServerLines]:
    clock = RedisClock()
    clock.sync(client)
    log.setLevel(logging.INFO)
    lines = ServerLines({"db": build_masker()}, clock, "w0@here")
    lines.open()
    yield lines
    lines.close()
    log.setLevel(logging.NOTSET)


def test_lines_of_the_log_are_written_masked_and_cut(client: Any, lines: ServerLines) -> None:
    log.info("%s: %s", "stderr", "password: hunter2-hunter2 for sam")
    log.warning("x" * 2000)
    logging.getLogger("tarsy_tasks.server.unknown").warning("of no server")
    lines.write(client)
    lines.write(client)
    first, second = read_server_log(client, "db")
    assert (first.text, first.worker, first.level) == ("stderr: password: __MASKED__ for sam", "w0@here", "INFO")
    assert abs(first.at - time.time()) < 60
    assert (second.text, second.level) == ("x" * LONGEST_LINE, "WARNING")
    assert client.keys("tarsy:server-log:*") == [b"tarsy:server-log:db"]


def test_lines_wait_for_redis_and_the_latest_are_kept(client: Any, lines: ServerLines) -> None:
    for number in range(KEPT_LINES):
        log.info("line %d", number)
    nowhere = redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0))
    with pytest.raises(RedisError):
        lines.write(nowhere)
    log.info("the last one")
    lines.write(client)
    found = [line.text for line in read_server_log(client, "db")]
    assert (len(found), found[0], found[-1]) == (KEPT_LINES, "line 1", "the last one")


def test_the_oldest_calls_of_each_server_are_reported() -> None:
    metrics = CallMetrics()
    audit = Audit("w0@here", {"desk": build_masker()}, load_settings(), metrics.clock, metrics, is_bound=True)
    deliveries: list[Delivery] = []
    for number in range(REPORTED_CALLS + 2):
        message = CallMessage(("desk", "wait", {"password": "hunter2"}, {"agent_id": "sre", "run_id": 7}), {})
        delivery = Delivery(f"task {number}", "mcp.desk:a:ops", runs=number > 0, priority="batch")
        record = delivery.record = audit.open_record(delivery.tag, message, delivery)
        record.picked_up_at = time.monotonic() - number
        deliveries.append(delivery)
    for delivery in (*deliveries, Delivery("a check", "mcp.desk.check", runs=True)):
        hold_lease(delivery)
    try:
        report = build_running_report(audit, "w0@here")
    finally:
        for delivery in (*deliveries, Delivery("a check", "mcp.desk.check")):
            release_lease(delivery)
    assert [call.task_id for call in report] == [f"task {number}" for number in range(REPORTED_CALLS + 1, 1, -1)]
    oldest = report[0]
    assert (oldest.principal, oldest.priority) == ("ops", "batch")
    assert (oldest.server, oldest.tool, oldest.agent_id, oldest.run_id) == ("desk", "wait", "sre", "")
    assert "hunter2" not in oldest.model_dump_json()

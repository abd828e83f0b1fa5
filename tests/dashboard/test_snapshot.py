"""The state of all servers at one moment, read from Redis at little cost."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.broker import keys
from tarsy_tasks.catalogue import approve_tools, read_catalogue
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.dashboard import snapshot
from tarsy_tasks.dashboard.snapshot import ServerSnapshot, SnapshotReader
from tarsy_tasks.models import ToolListing
from tarsy_tasks.telemetry.health_records import HealthStatus
from tarsy_tasks.worker.reporting.tool_changes import record_listing
from tests.dashboard.records import WORKERS, FleetServer, write_fleet, write_health


@pytest.fixture
def reader(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotReader:
    """Without a configuration, until one is written to the path that the environment names."""
    monkeypatch.setenv("TARSY_MCP_CONFIG", str(tmp_path / "mcp.json"))
    return SnapshotReader(build_app(), client, client)


def of(reader: SnapshotReader, name: str) -> ServerSnapshot:
    return reader.read().servers[name]


def test_a_snapshot_has_hour_workers_and_limit_of_a_server(client: Any, reader: SnapshotReader) -> None:
    down = range(10, 20)
    write_fleet(client, [FleetServer("k8s", tools=3, failing=0.5, down=down, running=256, queued=7)])
    found = of(reader, "k8s")
    assert (found.status, found.transports, found.eras, found.protocols) == (
        HealthStatus.HEALTHY, ["stdio"], ["2026"], ["2026-07-28"],
    )  # fmt: skip
    assert [record.worker for record in found.records] == list(WORKERS)
    assert (found.running, dict(found.in_flight), found.queued) == (256, {"worker@alpha": 256}, 7)
    assert (found.limit, found.is_full) == (256, True)
    assert found.uptime == pytest.approx(50 / 60, abs=0.03)
    assert 0 < found.failure_count <= found.call_count
    assert (found.last_failure is not None and found.last_failure.tool, found.problems) == ("list_pods", ())
    assert found.tool_count == 3


def test_the_current_minute_has_the_present_status(client: Any, reader: SnapshotReader) -> None:
    servers = [FleetServer("k8s", reason="MCP server `k8s` is not available: it exited with code 1.")]
    write_fleet(client, servers)
    found = of(reader, "k8s")
    assert (found.status, found.reason) == (HealthStatus.UNHEALTHY, "it exited with code 1.")
    assert [minute.status for minute in found.minutes[-2:]] == [HealthStatus.HEALTHY, HealthStatus.UNHEALTHY]
    write_health(client, [FleetServer("k8s", reason="MCP server `k8s` is gone.", unhealthy_workers=WORKERS[:1])])
    assert (of(reader, "k8s").status, of(reader, "k8s").minutes[-1].status) == (HealthStatus.DEGRADED,) * 2


def test_changed_tools_are_counted_until_they_are_approved(client: Any, reader: SnapshotReader) -> None:
    write_fleet(client, [FleetServer("k8s", tools=3)])
    assert of(reader, "k8s").changed_tools == 0
    first, second, _ = read_catalogue(client, ["k8s"])["k8s"].listing.tools
    changed = first.model_copy(update={"description": "Another one."})
    record_listing(client, ToolListing(server="k8s", tools=(changed, second)), worker="w")
    assert (of(reader, "k8s").changed_tools, of(reader, "k8s").tool_count) == (2, 2)
    approve_tools(client, read_catalogue(client, ["k8s"])["k8s"])
    assert of(reader, "k8s").changed_tools == 0


def test_unchanged_data_is_not_read_again(client: Any, reader: SnapshotReader) -> None:
    write_fleet(client, [FleetServer(f"s{number}", tools=1) for number in range(snapshot.LISTINGS + 5)])
    first = reader.read()
    assert sum(server.listed is not None for server in first.servers.values()) == snapshot.LISTINGS
    assert (reader.is_complete, [server.problems for server in first.servers.values() if server.problems]) == (
        False,
        [],
    )
    second = reader.read()
    assert (reader.is_complete, all(server.listed for server in second.servers.values())) == (True, True)
    third = reader.read()
    assert all(third.servers[name].listed is server.listed for name, server in second.servers.items())
    before = {minute.at: minute for minute in second.servers["s0"].minutes}
    assert all(minute is before[minute.at] for minute in third.servers["s0"].minutes[:50])


def test_a_list_of_tools_without_a_revision_is_read(client: Any, reader: SnapshotReader) -> None:
    write_fleet(client, [FleetServer("k8s", tools=3)])
    client.delete(keys.TOOL_REVISIONS)
    assert of(reader, "k8s").listed is not None
    assert of(reader, "k8s").problems == ()


def test_servers_come_from_the_configuration_or_from_records(client: Any, reader: SnapshotReader) -> None:
    now, _ = client.time()
    client.zadd(keys.MEASURED_SERVERS, {"lately": now - 3600, "long-ago": now - 2 * 24 * 3600})
    client.expire(keys.MEASURED_SERVERS, 60)
    write_health(client, [])
    assert list(reader.read().servers) == ["lately"]
    assert not reader.read().has_workers
    Path(os.environ["TARSY_MCP_CONFIG"]).write_text(
        json.dumps({"mcpServers": {"k8s": {"command": "x"}, "off": {"command": "x", "enabled": False}}})
    )
    assert list(reader.read().servers) == ["k8s"]
    write_fleet(client, [FleetServer("seen", tools=1)])
    assert list(reader.read().servers) == ["k8s", "seen"]
    assert of(reader, "k8s").status is HealthStatus.UNKNOWN


def test_keys_of_another_type_hide_nothing_else(client: Any, reader: SnapshotReader) -> None:
    write_fleet(client, [FleetServer("k8s", tools=1)])
    assert reader.read().problems == ()
    client.set(keys.in_flight_key("worker@beta#1"), "[", ex=60)
    client.zadd(keys.MEASURING_WORKERS, {"worker@beta#1": client.time()[0]})
    assert reader.read().problems == (
        "what worker worker@beta#1 has in flight cannot be read: it is damaged, or of another version",
    )
    this_minute = keys.minute_key(client.time()[0] // 60)
    spoilt = (keys.MEASURED_SERVERS, keys.MEASURING_WORKERS, keys.LAST_FAILURES, keys.TOOL_REVISIONS, this_minute)
    client.delete(*spoilt)
    for key in spoilt:
        client.set(key, "of another type", ex=60)
    found = reader.read()
    assert [problem.partition(" cannot be read: ")[0] for problem in found.problems] == [
        "1 minutes of the last hour", "which servers had calls", "what is in flight", "the last failures",
        "which tools changed",
    ]  # fmt: skip
    assert found.servers["k8s"].status is HealthStatus.HEALTHY

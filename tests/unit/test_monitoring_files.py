"""The alert rules and the Grafana dashboard of a deployment, with promtool and against the series that there are."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from redis.backoff import NoBackoff
from redis.retry import Retry

from tarsy_tasks.celery_app import build_app
from tarsy_tasks.dashboard.metrics import FleetCollector
from tarsy_tasks.telemetry.metrics import NO_TOOL
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tests.dashboard.records import FleetServer, write_fleet
from tests.processes import free_port

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "tarsy-tasks.json").read_text())
TESTS = ROOT / "tests" / "data" / "alerts_test.yml"
NAME = re.compile(r"\btarsy_\w+")


def promtool(*words: str | Path, text: str = "", directory: Path = ROOT) -> None:
    """Run it; fails the test if it finds something, or under CI if it is not installed."""
    path = shutil.which("promtool")
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("promtool is not installed")
    done = subprocess.run([path, *words], input=text, cwd=directory, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def dashboard_expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


@pytest.fixture
def exposed(client: Any) -> str:
    """Flower's /metrics, as far as it is ours."""
    servers = [FleetServer("desk", tools=2, refusing=0.5), FleetServer("k8s", tools=2, failing=0.5)]
    write_fleet(client, servers)
    metrics = CallMetrics()
    metrics.add("desk", NO_TOOL, {"recreations": 1, "suspensions": 1, "unaudited": 1, "limited:limits[0]": 1})
    metrics.add("desk", "list_pods", {"denied:allow": 1})
    metrics.flush(client, "worker@alpha#1", {})
    registry = CollectorRegistry()
    registry.register(FleetCollector(build_app(), client, client))
    return generate_latest(registry).decode()


def test_the_alert_rules_are_valid(tmp_path: Path) -> None:
    promtool("check", "rules", RULES)
    for file in (RULES, TESTS):
        shutil.copy(file, tmp_path)
    promtool("test", "rules", TESTS.name, directory=tmp_path)


def test_the_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    replaced = [each.replace("$__rate_interval", "5m") for each in dashboard_expressions()]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(replaced)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", file)


def test_rules_and_dashboard_use_series_that_there_are(exposed: str) -> None:
    known: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposed):
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    rules = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    variables = [each["definition"] for each in DASHBOARD["templating"]["list"] if "definition" in each]
    for expression in (*rules, *dashboard_expressions(), *variables):
        names = NAME.findall(expression)
        assert names, expression
        assert not set(names) - known.keys(), expression
        labels = set(re.findall(r'(\w+)=~?"', expression)) | set(re.findall(r"by \((\w+)\)", expression))
        assert labels <= set[str]().union(*(known[name] for name in names)), expression


def test_every_series_is_documented_and_no_other(exposed: str) -> None:
    table = (ROOT / "docs" / "monitoring.md").read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    documented = {
        name for line in table.splitlines() if line.startswith("| `") for name in NAME.findall(line.split("|")[1])
    }
    of_one_worker = {"tarsy_session_connected"}
    assert documented == set(re.findall(r"^# HELP (tarsy_\w+)", exposed, re.M)) | of_one_worker


def test_promtool_finds_nothing_in_our_metrics(exposed: str) -> None:
    assert 'tarsy_call_errors_total{code="TOOL_ERROR"' in exposed
    assert "tarsy_dead_letters 0.0" in exposed
    promtool("check", "metrics", text=exposed)


def test_an_outage_of_redis_is_a_metric_too() -> None:
    registry = CollectorRegistry()
    with redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0)) as nowhere:
        registry.register(FleetCollector(build_app(), nowhere, nowhere))
        assert "tarsy_redis_up 0.0" in generate_latest(registry).decode()

"""MCP's own conformance suite, against calls that go through the queue and a worker.

The suite starts the server of a scenario, then a "client", and judges what the server saw. The client here is an agent
with a worker of its own, whose only server is that of the scenario.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tarsy_tasks import ParkedCall, ToolExecutor
from tarsy_tasks.arguments.example import example_call
from tarsy_tasks.arguments.schema import Schema
from tarsy_tasks.questions import Answers, InputQuestion
from tests.npm import conformance_suite
from tests.processes import Worker, environment_of, wait_until

HERE = Path(__file__).parent
SCENARIOS = {
    "2025-11-25": ["initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"],
    "2026-07-28": [
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
    ],
}
"""What each specification requires of a client, but for authorization."""
SCHEMAS = "json-schema-2020-12-preservation"
"""Not required, because it is younger than both."""
RUNS = [(version, scenario) for version in SCENARIOS for scenario in [*SCENARIOS[version], SCHEMAS]]


@pytest.mark.parametrize("version", SCENARIOS)
def test_these_are_the_required_scenarios(version: str) -> None:
    _, requirements = conformance_suite()
    required = yaml.safe_load((requirements / f"{version}.yaml").read_text())["client"]
    assert SCENARIOS[version] == [name for name in required if not name.startswith("auth/")]


@pytest.mark.parametrize(("version", "scenario"), RUNS)
def test_the_suite_is_content(version: str, scenario: str, redis_url: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "done")
    suite, _ = conformance_suite()
    command = [*suite, "client", "--command", f"sh {HERE / 'hand_over.sh'} {tmp_path}", "--timeout", "90000"]
    command += ["--scenario", scenario, "--spec-version", version, "--output-dir", str(tmp_path / "results")]
    command += ["--expected-failures", str(HERE / "expected-failures.yaml"), "--verbose"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path)
    try:
        ready = tmp_path / "ready"
        wait_until(lambda: ready.exists() or process.poll() is not None, "the scenario's server runs", 60)
        assert process.poll() is None, (tmp_path / "log").read_text()
        server = f"{scenario}-{version}"  # what is listed is kept by this name
        servers = {server: {"url": ready.read_text()}}
        context = (tmp_path / "context").read_text()
        with Worker(tmp_path / "worker", servers, redis_url) as worker, environment_of(worker):
            worker.wait_until_ready()
            take_part(server, json.loads(context) if context else {})
        (tmp_path / "done").write_text("")
        code = process.wait(60)
    finally:
        process.kill()
        process.wait()
    assert code == 0, (tmp_path / "log").read_text()


def take_part(server: str, context: Mapping[str, Any]) -> None:
    """Call what the scenario asks for, or else each tool of the server; then read and get what else it has."""
    with ToolExecutor(timeout_s=20, on_input=accept_all) as tools:
        schemas = {tool.tool: tool.input_schema for tool in tools.list_tools()}
        for name, arguments in find_calls(context, schemas):
            tools.execute(f"{server}.{name}", arguments)
        for resource in tools.list_resources(server):
            tools.read_resource(resource)
        tools.list_resource_templates(server)
        for prompt in tools.list_prompts(server):
            tools.get_prompt(server, prompt.name, {each.name: "x" for each in prompt.arguments})


def accept_all(parked: ParkedCall) -> Answers:
    """Accept everything, and leave each field that has a default to that."""
    return {question.name: dict.fromkeys(required_of(question), True) for question in parked.questions}


def required_of(question: InputQuestion) -> list[str]:
    schema = question.requested_schema
    fields: dict[str, Any] = schema.get("properties", {})
    return [name for name in schema.get("required", []) if "default" not in fields[name]]


def find_calls(context: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if "toolCalls" in context:
        yield from ((call["name"], call["arguments"]) for call in context["toolCalls"])
    elif "json_schema_echo" in schemas:
        yield "json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]}
    else:
        yield from ((name, example_call(Schema(schema)) or {}) for name, schema in schemas.items())

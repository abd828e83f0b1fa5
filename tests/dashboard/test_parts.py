"""Parts of the pages that need neither a running Flower nor a browser."""

import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flower import urls
from flower.utils.search import TaskSearchEngine
from redis.exceptions import RedisError
from tornado.escape import utf8

from tarsy_tasks.catalogue import ApprovedTool, ListedServer
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.dashboard import formats, installation, page_templates, plots
from tarsy_tasks.dashboard.page_templates import PageTemplates, escape_visibly
from tarsy_tasks.dashboard.reader import CallDetails, DashboardReader
from tarsy_tasks.dashboard.remedies import cut_advice
from tarsy_tasks.dashboard.task_list import format_task, widen_search, without_arguments
from tarsy_tasks.dashboard.tools import build_tools
from tarsy_tasks.dashboard.waterfall import Bar
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.masking.masker import build_masker
from tarsy_tasks.models import ToolDefinition, ToolListing, ToolResult
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.telemetry.audit import AuditEntry, Step, StepName
from tarsy_tasks.telemetry.health_records import HealthStatus
from tarsy_tasks.telemetry.history import Minute
from tarsy_tasks.telemetry.metrics import BUCKETS_S, Distribution, ToolMetrics


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"), (float("nan"), "–"), (0.0, "0 ms"), (0.00001, "0 ms"), (0.0004, "0.4 ms"), (0.01234, "12.3 ms"),
        (0.9996, "1 s"), (3.25, "3.25 s"), (59.99, "60 s"), (60, "1 min"), (130, "2 min 10 s"),
        (3 * 3600 + 62, "3 h 1 min"), (90_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_a_duration_has_a_fitting_unit(seconds: float | None, shown: str) -> None:
    assert formats.duration(seconds) == shown


def test_only_the_whole_is_shown_as_100_percent() -> None:
    assert [formats.share(part) for part in (1.0, 0.9999, 0.5, None)] == ["100 %", "99.9 %", "50 %", "–"]
    assert [formats.ratio(part, 10_000) for part in (0, 1, 10_000)] == ["0 %", "0.1 %", "100 %"]
    assert [formats.size(each) for each in (None, 0, 1023, 2048, 5 * 2**20)] == ["–", "0 B", "1023 B", "2 KiB", "5 MiB"]


@pytest.mark.parametrize("at", [None, float("nan"), float("inf"), 1e20, -1e20])
def test_an_impossible_time_is_shown_as_a_dash(at: float | None) -> None:
    assert formats.time_tag(at) == "–"


def minutes() -> list[Minute]:
    statuses = [HealthStatus.HEALTHY] * 40 + [HealthStatus.UNHEALTHY] * 15 + [HealthStatus.UNKNOWN] * 5
    busy: dict[str, Any] = {
        "calls": {Outcome.OK: 3, Outcome.TIMEOUT: 1, Outcome.REJECTED: 1, Outcome.TOOL_ERROR: 2},
        "call_count": 7,
        "failure_count": 1,
        "tool_error_count": 2,
        "duration": Distribution(tuple(int(bound == 0.1) for bound in BUCKETS_S)),
        "p50_s": 0.1,
        "p95_s": 0.2,
    }
    return [Minute(60 * number, status, **(busy if number % 7 else {})) for number, status in enumerate(statuses)]


def test_every_plot_is_drawn_and_labelled() -> None:
    hour = minutes()
    bar = Bar(StepName.SENT, 1, "worker@alpha", begins_s=1.0, lasts_s=2.5)
    drawn = [
        plots.uptime_strip(hour), plots.sparkline(hour), plots.latency_lines(hour), plots.waterfall_bar(bar, 4.0),
        plots.outcome_bar({Outcome.OK: 7, Outcome.TIMEOUT: 1}), plots.duration_bars(hour[1].duration),
        plots.call_bars(hour, "/mcp/calls?server=k8s&"),
    ]  # fmt: skip
    for text in drawn:
        svg = ET.fromstring(text)
        is_linked = svg.find("a") is not None
        assert (svg.get("role"), bool(svg.get("aria-label"))) == ("group" if is_linked else "img", True)
        assert "style" not in text
    assert [each.get("class") for each in ET.fromstring(drawn[0])] == ["healthy", "unhealthy", "unknown"]
    assert "40 minutes healthy, 15 minutes unhealthy, 5 minutes unknown" in drawn[0]
    assert drawn[3].partition('<rect class="sent" ')[2].startswith('x="250" width="625" ')
    bars = ET.fromstring(drawn[6]).findall("a")
    assert bars[0].get("href") == "/mcp/calls?server=k8s&since=60&until=120"
    assert [each.get("class") for each in bars[0].findall("rect")] == ["failed", "tool_error", "neutral", "ok", "hover"]


def test_no_step_of_a_call_is_later_than_the_next_one() -> None:
    steps = tuple(Step(name=name, at=at) for name, at in zip(StepName, (5.004, 5.0, 5.1, 5.3, 5.2), strict=True))
    call = CallDetails("1", AuditEntry(at=6, steps=steps), None)
    assert [step.at for step in call.steps] == [5.0, 5.0, 5.1, 5.2, 5.2]
    assert [step.name for step in call.steps] == list(StepName)
    assert CallDetails("1", None, None).steps == []


def test_without_calls_no_plot_is_drawn() -> None:
    quiet = [Minute(60 * number) for number in range(60)]
    assert (plots.sparkline(quiet), plots.latency_lines(quiet), plots.call_bars(quiet, "")) == ("", "", "")
    assert (plots.outcome_bar({}), plots.duration_bars(Distribution())) == ("", "")


@pytest.mark.parametrize(
    ("number", "above"), [(0, 0), (0.011, 0.02), (1, 1), (3, 4), (41, 60), (61, 100), (1000, 1000)]
)
def test_a_scale_ends_at_a_round_number(number: float, above: float) -> None:
    assert plots.latency_scale([Minute(0, p95_s=number)]) == pytest.approx(above)


def definition(name: str, schema: dict[str, Any], description: str = "") -> ToolDefinition:
    return ToolDefinition(
        name=f"k8s.{name}", server="k8s", tool=name, description=description, input_schema=schema,
        annotations={"readOnlyHint": True, "destructiveHint": "perhaps"},
    )  # fmt: skip


def approvals(**approved: ToolDefinition) -> dict[bytes, bytes]:
    entries = {
        name: ApprovedTool(fingerprint=tool.fingerprint, definition=tool, approved_at=1)
        for name, tool in approved.items()
    }
    return {name.encode(): entry.model_dump_json().encode() for name, entry in entries.items()}


def test_a_tool_is_shown_with_its_parameters_and_changes() -> None:
    schema = {
        "type": "object",
        "properties": {
            "namespace": {"type": "string", "description": "Where. password: hunter2-hunter2"},
            "kinds": {"type": "array", "items": {"type": "string"}, "default": ["pod"]},
            "output": {"enum": ["json", 1]},
            "anything": True,
            "odd": {"type": ["string", "null", 7], "description": 5},
        },
        "required": ["namespace", 7],
    }
    old = definition("old", {})
    listed = ListedServer(
        listing=ToolListing(server="k8s", tools=(definition("get", schema), definition("new", {"properties": 3}))),
        listed_at=1, worker="w", counts={}, approvals=approvals(get=old, old=old),
    )  # fmt: skip
    found = {tool.name: tool for tool in build_tools("k8s", listed, [ToolMetrics("k8s", "gone")], build_masker())}
    assert {name: tool.change for name, tool in found.items()} == {
        "get": "changed", "gone": "unlisted", "new": "added", "old": "removed",
    }  # fmt: skip
    get = found["get"]
    assert [(each.name, each.kind, each.is_required) for each in get.parameters] == [
        ("namespace", "string", True),
        ("kinds", 'array of string = ["pod"]', False),
        ("output", '"json" | 1', False),
        ("anything", "any", False),
        ("odd", "string | null", False),
    ]
    assert "hunter2" not in get.schema + get.parameters[0].description
    assert get.hints == ["read-only"]
    assert found["new"].parameters == []
    assert "hunter2" not in "".join(get.diff)
    assert '-  "input_schema": {}' in get.diff
    assert found["old"].diff == ()


def test_a_lone_surrogate_in_a_schema_breaks_no_page() -> None:
    tool = definition("get", {"properties": {"a\ud800": {"description": "b\udfff", "default": "\ud800"}}})
    listed = ListedServer(
        listing=ToolListing(server="k8s", tools=(tool,)), listed_at=1, worker="w", counts={}, approvals={}
    )
    (found,) = build_tools("k8s", listed, [], build_masker())
    parameter = found.parameters[0]
    (found.schema + parameter.name + parameter.kind + parameter.description).encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>\u202e&\x1b\n", b"&lt;b&gt;\\u202e&amp;\\x1b\n"),
        ("list pods: 3.5 %", b"list pods: 3.5 %"),
        ("'\"", b"&#x27;&quot;"),
        ("harmless\n<", b"harmless\n&lt;"),
        ("Größe", "Größe".encode()),
    ],
)
def test_texts_are_escaped_and_hidden_characters_shown(text: str, shown: bytes) -> None:
    assert utf8(escape_visibly(text.encode())) == shown


def task(**fields: Any) -> Any:
    return SimpleNamespace(**{"args": None, "kwargs": None, "result": None} | fields)


def test_flower_shows_calls_under_the_names_of_tools() -> None:
    answer = ToolResult(
        call_id="1", name="k8s.get: odd, 3 characters, ", content="words",
        outcome=Outcome.TIMEOUT, error_code=ErrorCode.CALL_TIMEOUT,
    )  # fmt: skip
    call = format_task(task(name="tarsy.call_tool", args="k8s.get", kwargs="{}", result=repr(answer)))
    assert (call.name, call.result, call.args, call.kwargs) == (
        "k8s.get",
        "timeout CALL_TIMEOUT",
        "not shown",
        "not shown",
    )
    assert format_task(task(name="tarsy.call_tool", args="k8s.get")).result is None
    missed = format_task(task(name=None, result=repr(answer)))
    assert (missed.name, missed.result, format_task(task(name=None)).name) == (
        "tarsy.call_tool", "timeout CALL_TIMEOUT", None,
    )  # fmt: skip
    assert format_task(task(name="tarsy.list_tools", args="k8s")).name == "k8s: list of tools"
    other = format_task(task(name="theirs", args="(1,)", result="2"))
    assert (other.name, other.args, other.result) == ("theirs", "(1,)", "2")


def test_a_flower_with_other_templates_is_refused(tmp_path: Path) -> None:
    known = Path(urls.settings["template_path"])
    for name in page_templates.ADDITIONS:
        text = (known / name).read_text()
        (tmp_path / name).write_text(text.replace("Broker", "Brokers"))
    with pytest.raises(ConfigError, match=r"navbar\.html is different.*flower>=2\.2"):
        PageTemplates(tmp_path)
    assert "mcp" in PageTemplates(known).load("navbar.html").code


def test_an_unknown_version_of_flower_is_refused() -> None:
    installation.check_version("2.2.7")
    with pytest.raises(ConfigError, match=r"Flower 3\.0\.0 is not supported.*flower>=2\.2"):
        installation.check_version("3.0.0")


def test_arguments_in_events_of_producers_are_removed() -> None:
    event = {"type": "task-sent", "name": "tarsy.call_tool", "uuid": "1", "args": "('hunter2',)", "kwargs": "{}"}
    assert without_arguments(event) == {"type": "task-sent", "name": "tarsy.call_tool", "uuid": "1"}
    for other in ({**event, "name": "theirs"}, {**event, "type": "task-received", "args": "k8s.get"}):
        assert without_arguments(other) == other
    assert format_task(task(name="tarsy.call_tool")).name == "tarsy.call_tool"
    assert format_task(task(name="tarsy.list_tools")).name == "tarsy.list_tools"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("name:desk.login", True),
        ("NAME:desk.login", True),
        ("(name:desk.login)", True),
        ("(name:desk.login OR name:desk.logout) state:SUCCESS", True),
        ('name:"desk.login"', True),
        ('"name:desk.login"', True),
        (r"name:desk\"", False),
        ('"my name:desk.login"', False),
        ('"and (name:desk.login" name:desk', False),
        ("name:other", False),
        ("desk.login", True),
        ("", True),
    ],
)
def test_a_search_for_a_name_also_finds_tools(query: str, found: bool) -> None:
    call = task(uuid="1", name="tarsy.call_tool", state="SUCCESS", args="desk.login")
    engine = TaskSearchEngine()
    engine.upsert(call)
    assert bool(engine.search({"1": call}, widen_search(query)).task_ids) == found


@pytest.mark.parametrize(
    ("code", "text", "shown"),
    [
        (
            ErrorCode.SERVER_UNAVAILABLE,
            "It ended:\nno module. The tool did not run. Try again later.",
            "It ended:\nno module. The tool did not run.",
        ),
        (ErrorCode.CALL_TIMEOUT, "No answer. It may have run. Check its effects.", "No answer. It may have run."),
        (ErrorCode.TOOL_ERROR, "Step 2 may have run. Step 3 failed.", "Step 2 may have run. Step 3 failed."),
        ("OF_LATER", "Something else", "Something else"),
    ],
)
def test_operators_do_not_read_advice_for_models(code: str, text: str, shown: str) -> None:
    assert cut_advice(code, text) == shown


def test_an_error_of_redis_is_shown_without_secrets() -> None:
    shown = DashboardReader(build_app()).describe_error(
        RedisError("no user for redis://flower:hunter2-hunter2@127.0.0.1")
    )
    assert "127.0.0.1" in shown
    assert "hunter2" not in shown

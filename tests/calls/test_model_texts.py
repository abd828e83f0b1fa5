"""What a model wrote reaches the MCP server as the right arguments, or not at all."""

from pathlib import Path

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.warm_start import warm_command

RECORDING = Path(__file__).parents[1] / "servers" / "recording.py"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, records: Path) -> Worker:
    recording = warm_command(str(RECORDING), str(records))
    return start_worker({"desk": DEMO_SERVER, "recording": recording})


def call(name: str, text: str) -> ToolResult:
    with ToolExecutor(timeout_s=20) as tools:
        return tools.execute(ToolCall(id="c1", name=name, arguments=text))


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        ('{"item": "lamp", "count": 3}', ()),
        ("item: lamp\ncount: 3", ("pairs",)),
        ("```yaml\nitem: >-\n  lamp\ncount: 3\n```", ("yaml", "code_fence")),
        (
            "```json\n{'item': 'lamp', 'count': '3',}\n```",
            ("almost_json", "code_fence", "single_quotes", "trailing_comma", "to_integer"),
        ),
    ],
)
def test_arguments_are_repaired_and_the_result_lists_the_repairs(text: str, repairs: tuple[str, ...]) -> None:
    result = call("desk.quote", text)
    assert result.structured == {"item": "lamp", "count": 3, "total": 13.5}
    assert result.repairs == repairs


def test_the_log_shows_repairs_and_nothing_of_the_arguments(worker: Worker) -> None:
    call("desk.echo", "{'text': 'stands-nowhere-else'}")
    wait_until(lambda: "arguments repaired: almost_json single_quotes" in worker.log, "the repairs in the log")
    assert "stands-nowhere-else" not in worker.log


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        ('{"name": "cut-off", "seconds": 0', ("text", "cut_off")),
        ("--name flags --seconds 0", ("text", "broken")),
        ("name: half", ("pairs", "unfit")),
        ('{"name": "many", "seconds": "soon"}', ("unfit",)),
    ],
)
def test_a_text_that_is_refused_never_reaches_the_server(text: str, repairs: tuple[str, ...], records: Path) -> None:
    result = call("recording.hold", text)
    assert (result.outcome, result.error_code, result.attempts) == (
        Outcome.REJECTED,
        ErrorCode.INVALID_ARGUMENTS,
        0,
    )
    assert result.repairs == repairs
    assert "Nothing was sent" in result.content
    assert "`seconds` (required): a number" in result.content
    assert list(records.iterdir()) == []

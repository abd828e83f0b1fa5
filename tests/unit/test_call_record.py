"""What the audit will say of a call, whatever its message and its arguments look like."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks import ErrorCode, Outcome, ToolResult
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.messages import CallMessage
from tarsy_tasks.broker.task_names import REQUEST
from tarsy_tasks.methods import ANSWER_INPUT
from tarsy_tasks.settings import Settings
from tarsy_tasks.telemetry.audit import AuditEntry, build_canonical, build_digest
from tarsy_tasks.telemetry.shown_arguments import build_shown
from tarsy_tasks.worker.maskers import build_masker
from tarsy_tasks.worker.reporting.audit_writer import Audit
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tarsy_tasks.worker.reporting.call_record import CallRecord

SECRET = "hunter2hunter2"
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)
"""With halves of characters, which no JSON text of Redis can hold."""


def opened(**settings: Any) -> Audit:
    return Audit("w@host", {}, Settings(**settings), RedisClock(), CallMetrics())


def record_of(*args: Any, **kwargs: Any) -> CallRecord:
    return opened().open_record("t", CallMessage(list(args), kwargs), Delivery("t", "mcp.desk"))


def entry_of(record: CallRecord, *ending: Any) -> AuditEntry:
    text = record.write(*ending).text
    entry = AuditEntry.model_validate_json(text)
    assert json.loads(text) == json.loads(entry.encode()), "as the model writes it"
    return entry


@given(args=st.lists(ANYTHING) | ANYTHING, kwargs=st.dictionaries(st.text(), ANYTHING) | ANYTHING)
def test_no_message_is_too_strange_for_an_entry(args: Any, kwargs: Any) -> None:
    entry = entry_of(opened().open_record("t", CallMessage(args, kwargs), Delivery("t", "mcp.desk")))
    assert (entry.outcome, entry.task_id) == (Outcome.CANCELLED, "t"), "and not incomplete"


@given(info=st.fixed_dictionaries({}, optional=dict.fromkeys(("call_id", "agent_id", "sent_at", "deadline"), ANYTHING)))
def test_no_caller_is_too_strange_for_an_entry(info: dict[str, Any]) -> None:
    entry = entry_of(record_of("desk", "echo", {}, info))
    assert entry.name == "desk.echo"
    assert entry.damage is None


@pytest.mark.parametrize("ids", ["half \ud800", f"password={SECRET}", "x" * 10_000])
def test_the_ids_of_a_caller_are_masked_and_cut(ids: str) -> None:
    info = dict.fromkeys(("call_id", "agent_id", "run_id"), ids)
    record = record_of(ids, ids, {}, info)
    entry = entry_of(record)
    for text in (entry.call_id, entry.agent_id, entry.run_id, entry.server, entry.tool, entry.error):
        assert text is not None
        assert SECRET not in text
        assert len(text) <= 700


def test_a_stored_answer_has_the_outcome_of_its_call() -> None:
    record = record_of("desk", "echo", {"text": "x"})
    record.picked_up_at = time.monotonic()
    result = ToolResult(call_id="c", name="desk.echo", content="words", repairs=("json",), duration_s=0.5)
    entry = entry_of(record, "SUCCESS", result, 77)
    assert (entry.outcome, entry.error, entry.repairs, entry.duration_s, entry.bytes) == (
        Outcome.OK,
        None,
        ("json",),
        0.5,
        77,
    )


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (("REVOKED", {"exc_type": "TaskRevokedError"}, 9), ErrorCode.CANCELLED),
        (("FAILURE", {"exc_type": "TimeLimitExceeded"}, 9), ErrorCode.TIME_LIMIT),
        (("FAILURE", {"exc_type": "ValueError"}, 9), ErrorCode.INTERNAL_ERROR),
        (("FAILURE", None, 9), ErrorCode.INTERNAL_ERROR),
        (("SUCCESS", "no result of ours", 9), ErrorCode.INTERNAL_ERROR),
        ((), ErrorCode.CANCELLED),
    ],
)
def test_a_call_without_an_answer_has_its_reason(ending: tuple[Any, ...], code: ErrorCode) -> None:
    entry = entry_of(record_of("desk", "echo", {}), *ending)
    assert (entry.outcome, entry.error_code) == (code.outcome, code)
    assert "desk.echo" in (entry.error or "")


def test_a_call_withdrawn_after_its_deadline_was_not_started() -> None:
    record = record_of("desk", "echo", {}, {"deadline": 1.0})
    assert entry_of(record).error_code == ErrorCode.NOT_STARTED
    record = record_of("desk", "echo", {}, {"deadline": 1e11})
    assert entry_of(record).error_code == ErrorCode.CANCELLED


def test_a_failed_task_without_a_result_has_its_reason() -> None:
    record = record_of("desk", "echo", {})
    record.fail(KeyError("password"))
    entry = entry_of(record)
    assert (entry.error_code, "KeyError" in (entry.error or "")) == (ErrorCode.INTERNAL_ERROR, True)


def test_an_audit_that_is_off_writes_nothing(tmp_path: Path) -> None:
    off = opened(audit_entries=0).open_record("t", CallMessage([], {})).write()
    assert off.text == ""
    off.ended("")
    only_file = opened(audit_entries=0, audit_file=tmp_path / "audit")
    write = only_file.open_record("t", CallMessage(["desk", "echo"], {})).write()
    assert write.text == ""
    write.ended("")
    assert json.loads((tmp_path / "audit").read_text())["task_id"] == "t"
    only_file.close()


@pytest.mark.parametrize("is_text", [False, True])
def test_no_entry_has_the_values_of_an_answer(is_text: bool) -> None:
    """However the message ends: here it is withdrawn, and nobody has checked it."""
    given = {"call": "asking", "digest": "d", "answers": {"order": {"street": "Elm Road 5"}}}
    message = CallMessage(["desk", ANSWER_INPUT, json.dumps(given) if is_text else given, {}], {}, REQUEST)
    entry = entry_of(opened().open_record("t", message, Delivery("t", "mcp.desk")))
    assert (entry.operation, entry.error_code) == (ANSWER_INPUT, ErrorCode.CANCELLED)
    assert entry.arguments == ("{}" if is_text else '{"call":"asking"}')
    assert entry.arguments_digest == build_digest(entry.arguments), "values could be guessed from another one"


@given(ANYTHING)
def test_shown_arguments_are_short_and_the_same_each_time(arguments: Any) -> None:
    canonical = build_canonical(arguments)
    shown = build_shown(canonical, build_masker().mask)
    assert len(shown) <= 2001
    assert shown == build_shown(canonical, build_masker().mask)


@pytest.mark.parametrize(
    "arguments",
    [
        {"password": SECRET * 5000},
        {"a": "x" * 40_000, "password": SECRET},
        {"a": ["x" * 1000] * 40, "password": SECRET},
        {f"key{number}": {"password": SECRET} for number in range(5000)},
        [[[{"password": SECRET}] * 100] * 100],
        {"note": f"password={SECRET} " + "x" * 50_000},
        f"password: {SECRET}" + " x" * 50_000,
        "x" * 31_000 + f" password={SECRET} " + "x" * 2000,
    ],
)
def test_cutting_leaves_no_part_of_a_secret(arguments: Any) -> None:
    shown = build_shown(build_canonical(arguments), build_masker().mask)
    assert SECRET[:6] not in shown
    assert len(shown) <= 2001


def test_what_is_not_shown_is_named() -> None:
    shown = json.loads(build_shown(build_canonical({"path": "a.txt", "text": "x" * 100_000}), build_masker().mask))
    assert shown == {"path": "a.txt", "text": "[100000 characters]"}
    assert build_shown("x" * 100_000, build_masker().mask) == "[100000 characters]"
    many = build_shown(build_canonical({"list": list(range(100_000))}), build_masker().mask)
    assert many.startswith('{"list":[0,1,2')


def test_observers_see_each_ending_once() -> None:
    seen: list[tuple[str, ToolResult]] = []

    class Watcher:
        def ended(self, record: CallRecord, result: ToolResult) -> None:
            seen.append((record.title, result))

    audit = Audit("w@host", {}, Settings(audit_entries=0), RedisClock(), CallMetrics(), [Watcher()])
    write = audit.open_record("t", CallMessage(["desk", "echo"], {})).write()
    assert not seen, "the call has not ended before Redis took the answer"
    write.ended("")
    assert [(title, result.error_code) for title, result in seen] == [("`desk.echo`", ErrorCode.CANCELLED)]

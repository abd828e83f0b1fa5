"""What an agent makes of the batches of a worker: what is new, in order, and bounded for code that does not read."""

from tarsy_tasks.agent.event_stream import CallEvents, EventBuffer
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.call_events import CallLog, CallProgress, CallRestarted, DeadlineMoved, EventBatch
from tarsy_tasks.models import ToolCall, ToolResult

TASK = "c84b39f7-ea07-4566-b81c-6795b506cdcf"
DUMPED = (
    b'{"events":1,"task_id":"c84b39f7-ea07-4566-b81c-6795b506cdcf","since":5.5,"number":3,"at":6.0,"delivery":1,'
    b'"attempt":1,"progress":{"progress":3.0,"total":10.0,"message":"x","at":5.75},"deadline":60.0,"until":600.0,'
    b'"logs":[{"level":"info","text":"hi","at":5.5}]}'
)


def batch(number: int, reached: float, *, since: float = 1.0, **more: object) -> EventBatch:
    progress = CallProgress(progress=reached, at=since + number)
    facts = {"task_id": TASK, "since": since, "number": number, "at": since + number, "progress": progress}
    return EventBatch.model_validate({**facts, **more})


def test_a_batch_has_the_shape_that_deployed_versions_read() -> None:
    found = EventBatch.model_validate_json(DUMPED)
    assert found.dump() == DUMPED
    assert b"logs" not in found.dump(is_state=True)
    assert found.dump().startswith(b'{"events":'), "by which an agent tells it from an answer"


def test_what_is_older_or_repeated_is_no_event() -> None:
    buffer = EventBuffer()
    events = CallEvents(buffer)
    assert events.read(batch(2, 5))
    assert not events.read(batch(2, 5)), "it was read from Redis as well"
    assert not events.read(batch(1, 4)), "it came late"
    assert not events.read(batch(9, 9, since=0.5)), "of the worker that was cut off"
    assert [event.progress for event in buffer.take()[0] if isinstance(event, CallProgress)] == [5]


def test_the_answer_is_there_when_the_events_end() -> None:
    call = SubmittedCall(ToolCall(name="desk.look"), "{}", deadline=0.0)
    at_end: list[bool] = []
    call.events = CallEvents(EventBuffer(lambda: at_end.append(call.answered.done())))
    call.end(ToolResult.model_construct())
    assert at_end == [True]


def test_another_worker_begins_again() -> None:
    buffer = EventBuffer()
    events = CallEvents(buffer)
    events.read(batch(7, 5))
    events.read(batch(1, 1, since=9.0, delivery=2))
    found, _ = buffer.take()
    assert found[0] == CallRestarted(attempt=1, is_other_worker=True, at=10.0)
    assert isinstance(found[1], CallProgress)
    assert found[1].progress == 1


def test_lines_that_nobody_reads_are_counted() -> None:
    buffer = EventBuffer()
    for number in range(1000):
        buffer.put([CallLog(level="info", text=str(number)), CallProgress(progress=number)])
    found, _ = buffer.take()
    lines = [event for event in found if isinstance(event, CallLog)]
    assert [event.progress for event in found if isinstance(event, CallProgress)] == [999]
    assert (len(lines), lines[0].lost, lines[-1].text) == (200, 800, "999")


def test_a_deadline_that_moves_all_the_time_is_told_each_second() -> None:
    buffer = EventBuffer()
    events = CallEvents(buffer)
    told: list[float] = []
    for tenth in range(31):
        events.move_deadline(10 + tenth / 10, at=0.0)
        told += [event.timeout_s for event in buffer.take()[0] if isinstance(event, DeadlineMoved)]
    assert told == [10, 11, 12, 13]

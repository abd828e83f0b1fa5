"""Messages that harm: that kill their worker, that nobody takes, and that no program of ours wrote."""

import base64
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tarsy_tasks import ErrorCode, Outcome, PendingCall, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tests.chaos.load import Tally
from tests.chaos.stage import Form, Stage
from tests.cli.commands import run_command
from tests.processes import wait_until

__all__ = ["a_message_kills_its_worker", "nobody_serves", "they_are_bad", "they_are_large"]

IN_FLIGHT = 64
_ATTEMPTS = 3
_SET_ASIDE_S = 60.0
_UNSERVED_S = 3.0
_LATE_S = 1.0


def a_message_kills_its_worker(stage: Stage, form: Form) -> Tally:
    """A supervisor replaces the workers; the message must not take them all along, one after another."""
    deadly = ToolCall(id="deadly", name="desk.look", arguments={"key": "deadly", "kills_worker": True})
    unsafe = ToolCall(id="deadly-add", name="desk.add", arguments={"key": "deadly-add", "kills_worker": True})
    tools = stage.tools(_SET_ASIDE_S)
    load = stage.load("bystander", timeout_s=_SET_ASIDE_S)
    load.start(IN_FLIGHT)

    def answered(call: ToolCall) -> PendingCall:
        pending = tools.submit(call)

        def done() -> bool:
            stage.replace_dead()
            return pending.done()

        wait_until(done, f"the call {call.id}, which kills its worker, is answered", _SET_ASIDE_S)
        return pending

    # One after the other: each dies of itself, never of the other one before it has come to its server.
    dead_letter, once = answered(deadly), answered(unsafe).result()
    while load.unanswered():
        stage.replace_dead()
    tally = load.tally(unknown=True)
    tally.expect(
        str(dead_letter.result().error_code) == "SET_ASIDE",
        f"it did not become a dead letter: {dead_letter.result()!r}",
    )
    tally.expect(once.outcome is Outcome.UNKNOWN, f"the unsafe call was not `unknown`: {once!r}")
    runs = stage.ledger.runs()
    tally.expect(runs["deadly"] == _ATTEMPTS, f"it killed {runs['deadly']} workers, not {_ATTEMPTS}")
    tally.expect(runs["deadly-add"] == 1, f"the unsafe one was executed {runs['deadly-add']} times")
    _expect_dead_letter(stage, tally, dead_letter.id)
    return tally


def nobody_serves(stage: Stage, form: Form) -> Tally:
    """A server that the agent knows and no worker."""
    tools = ToolExecutor(["nobody"], timeout_s=_UNSERVED_S, app=stage.app)
    results = tools.execute_many(
        ToolCall(id=str(number), name="nobody.look", arguments={"key": "x"}) for number in range(IN_FLIGHT)
    )
    tally = Tally(calls=len(results))
    for result in results:
        tally.outcomes[str(result.outcome)] += 1
        tally.lost += result.error_code is ErrorCode.NO_ANSWER
        tally.longest_s = max(tally.longest_s, result.duration_s)
    tally.expect(tally.outcomes["unavailable"] == IN_FLIGHT, f"not all are `unavailable`: {dict(tally.outcomes)}")
    text = results[0].content
    tally.expect("no worker serves" in text.lower() and "did not run" in text, f"the text does not say so: {text}")
    tally.expect(tally.longest_s <= _UNSERVED_S + _LATE_S, f"an answer came after {tally.longest_s:.1f} s")
    tally.expect_soon(lambda: not stage.redis.exists(keys.queue("nobody")), "messages that nobody takes go away", 5)
    return tally


def they_are_bad(stage: Stage, form: Form) -> Tally:
    """Each message is answered with a reason, where it says to whom, and harms nobody."""
    tally = Tally()
    before = stage.redis.dbsize()
    for what, (message, expected) in _bad_messages().items():
        task_id = message.get("headers", {}).get("id") if isinstance(message, dict) else None
        stage.redis.lpush(keys.queue("desk"), message if isinstance(message, str) else json.dumps(message))
        tally.calls += 1
        if not expected:
            continue
        try:
            meta = wait_until(lambda task_id=task_id: stage.redis.get(f"celery-task-meta-{task_id}"), "", 5)
        except AssertionError:
            tally.lost += 1
            tally.findings.append(f"not answered: {what}")
            continue
        found = json.loads(meta)
        result = found["result"] if isinstance(found["result"], dict) else {}
        ending = result.get("error_code") or result.get("exc_type") or result.get("outcome") or found["status"]
        tally.outcomes[str(result.get("outcome", found["status"]))] += 1
        tally.expect(ending in expected, f"{what}: answered {ending}, not {' or '.join(expected)}")
    tally.notes.append(f"{stage.redis.dbsize() - before} keys more than before")
    tally.expect_soon(lambda: not stage.redis.llen(keys.queue("desk")), "the queue is empty")
    # What cannot be read cannot be answered either: it is delivered until it becomes a dead letter.
    tally.findings += stage.check_nothing_left(1.5 * (_ATTEMPTS + 1))
    load = stage.load("after-bad")
    load.start(IN_FLIGHT, wait_s=(0.1, 0.2))
    others = load.tally()
    tally.findings += others.findings
    tally.longest_s = others.longest_s
    return tally


def they_are_large(stage: Stage, form: Form) -> Tally:
    """Very large arguments, and a result that Redis does not take."""
    tools = stage.tools(form.deadline_s)
    load = stage.load("beside-large")
    load.start(IN_FLIGHT)
    huge = tools.submit(
        ToolCall(id="huge", name="desk.look", arguments={"key": "huge", "rest": "x" * form.large_bytes})
    )
    tally = Tally(calls=2)
    results = [huge.result()]
    with _small_values_only(stage):
        long = ToolCall(id="long", name="desk.add", arguments={"key": "long", "length": 1_048_500})
        results.append(tools.execute(long))
    for result in results:
        tally.outcomes[str(result.outcome)] += 1
        tally.lost += result.error_code is ErrorCode.NO_ANSWER
        tally.longest_s = max(tally.longest_s, result.duration_s)
        tally.notes.append(f"{result!r}: {result.content[:120]}")
    tally.expect(not tally.lost, "not answered")
    runs = stage.ledger.runs("add")["long"]
    tally.expect(runs == 1, f"the tool with the result that cannot be stored ran {runs} times")
    others = load.tally()
    tally.findings += others.findings
    return tally


@contextmanager
def _small_values_only(stage: Stage) -> Iterator[None]:
    """Redis takes no value above 1 MiB, as one does that is set up so (or at 512 MiB any)."""
    name = "proto-max-bulk-len"
    usual = stage.redis.config_get(name)[name]
    stage.redis.config_set(name, 1024 * 1024)
    try:
        yield
    finally:
        stage.redis.config_set(name, usual)


def _bad_messages() -> dict[str, tuple[Any, tuple[str, ...]]]:
    """By what is bad about it: the message as it lies in the queue, and how it may be answered; nothing when it does
    not say to whom.
    """
    rejected = ("INVALID_MESSAGE",)
    info = {"v": 1, "call_id": "c", "name": "desk.look"}
    fine = ["desk", "look", {"key": "bad"}]
    return {
        "what version 0.1 wrote": (_message([*fine, {"v": 1, "call_id": "c"}]), ("ok",)),
        "no call information": (_message(fine), ("ok",)),
        "keyword arguments": (_message([], {"server": "desk", "tool": "look"}), ("ok",)),
        "a version before the first": (_message([*fine, {**info, "v": 0}]), rejected),
        "a version to come": (_message([*fine, {**info, "v": 99}]), rejected),
        "no arguments": (_message([]), rejected),
        "no tool": (_message(["desk"]), rejected),
        "a tool that is a number": (_message(["desk", 7, {}]), rejected),
        "a tool that does not exist": (_message(["desk", "fly", {}]), ("UNKNOWN_TOOL",)),
        "a server that is not there": (_message(["chair", "look", {}]), ("UNKNOWN_SERVER",)),
        "call information that is text": (_message([*fine, "c"]), rejected),
        "a deadline that is text": (_message([*fine, {**info, "deadline": "soon"}]), rejected),
        "a deadline long ago": (_message([*fine, {**info, "deadline": 1.0}]), ("DEADLINE_PASSED",)),
        "too many arguments": (_message([*fine, info, 5, 6]), rejected),
        "an unknown keyword": (_message(fine, {"zzz": 1}), rejected),
        "an unknown task": (_message([], task="tarsy.unknown"), ("NotRegistered",)),
        "an id with slashes": (_message(fine, task_id="../../etc/passwd"), ("ok",)),
        "an id of many lines": (_message(fine, task_id="a\r\nDEL x\r\n b*?[z]"), ("ok",)),
        "an id of a megabyte": (_message(fine, task_id="i" * 1_000_000), ()),
        "an id that is a number": (_message(fine, task_id=7), ()),
        "an id that is an object": (_message(fine, task_id={"a": 1}), ()),
        "no id": (_message(fine, task_id=None), ()),
        "arguments that are no list": (_message("text"), ()),
        "no headers": ({**_message(fine), "headers": {}}, ()),
        "no properties": ({**_message(fine), "properties": {}}, ()),
        "a body that is not base64": ({**_message(fine), "body": "%%%"}, ()),
        "a body that is not JSON": ({**_message(fine), "body": base64.b64encode(b"{").decode()}, ()),
        "a body of another kind": ({**_message(fine), "content-type": "application/x-python-serialize"}, ()),
        "an object without anything": ({}, ()),
        "a list": ([], ()),
        "no JSON": ("garbage", ()),
        "nothing": ("", ()),
    }


def _message(
    arguments: Any, keywords: Any = None, *, task: str = "tarsy.call_tool", task_id: Any = ...
) -> dict[str, Any]:
    """A message as Celery's producers put it into a queue of Redis."""
    identity = str(uuid.uuid4()) if task_id is ... else task_id
    body = json.dumps([arguments, keywords or {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    return {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": task, "id": identity, "root_id": identity, "argsrepr": "", "kwargsrepr": ""},
        "properties": {
            "correlation_id": identity,
            "reply_to": str(uuid.uuid4()),
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "mcp.desk"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
        },
    }


def _expect_dead_letter(stage: Stage, tally: Tally, task_id: str) -> None:
    """Dead letters can be listed, expire, and can be dropped."""
    listed = _dead_letters(stage, "list", "--json")
    tally.expect(task_id in listed, f"`dead-letters list` does not show it: {listed[:200]}")
    tally.expect(task_id in _dead_letters(stage, "show", task_id), "`dead-letters show` does not show it")
    _dead_letters(stage, "drop", task_id)
    tally.expect(task_id not in _dead_letters(stage, "list", "--json"), "`dead-letters drop` did not drop it")


def _dead_letters(stage: Stage, *arguments: str) -> str:
    done = run_command("dead-letters", *arguments, environment=stage.workers[0].environment, cwd=stage.directory)
    return done.stdout + done.stderr

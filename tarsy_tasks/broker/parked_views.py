"""What people see of parked calls: reading them, one by one or those that wait, a page at a time.

Owns the shape. What is decided about them, and the record that this is read from, are in `parked_calls`. Calls of the
handshake era, whose sessions wait, are in a set of their own, because nothing wakes them (`input_rounds`).
"""

import json
from dataclasses import dataclass
from typing import Any

from tarsy_tasks.broker import keys

__all__ = ["PEOPLE", "TASK", "ParkedCallView", "load", "load_waiting"]

PEOPLE = "people"
TASK = "task"
"""The reason of a call that waits for a task of its MCP server."""
_PAGE = 500


@dataclass(frozen=True, slots=True)
class ParkedCallView:
    """What people see of a parked call. All texts of agents and servers are masked.

    Attributes:
        id: The task id.
        reason: Why it waits.
        until: When it expires, by the clock of Redis.
        digest: Of what was asked.
        needs: How many people have to approve it.
        approvals: Who has.
        decision: As in `ParkedRecord`.
        about: What is asked, by whom: `server`, `tool`, `arguments`, `why`, `agent_id`, `run_id`, `principal`, `at`.
        message: What the server last said of its task.
        principal: Who called, if that is verified.
    """

    id: str
    reason: str
    until: float
    digest: str
    needs: int
    approvals: tuple[str, ...]
    decision: str
    about: dict[str, Any]
    message: str = ""
    principal: str = ""


def load(redis: Any, task_id: str) -> ParkedCallView | None:
    """One parked call, also when it was decided already; None if there is no record of it."""
    return _view(task_id, redis.hgetall(keys.parked_key(task_id)))


def load_waiting(redis: Any, limit: int, *, for_tasks: bool = False) -> tuple[list[ParkedCallView], int]:
    """The calls that wait for people, those first that expire first, and how many of them there are in all: those that
    were withdrawn count until a worker finds that.

    Args:
        limit: No more of them than that are read.
        for_tasks: Instead, those that wait for tasks of servers.
    """
    listed = keys.inbox_key(TASK if for_tasks else PEOPLE)
    held: list[bytes] = [] if for_tasks else redis.zrange(keys.ASKING, _now(redis), "+inf", byscore=True)
    found = _read(redis, held[:limit])
    start, count = 0, len(found) + limit
    while len(found) < count:
        size = min(count - len(found), _PAGE)
        places: list[bytes] = redis.zrange(listed, start, start + size - 1)
        found += _read(redis, [place.partition(b"\n")[2] for place in places])
        if len(places) < size:
            break
        start += size
    return sorted(found, key=lambda view: view.until)[:limit], redis.zcard(listed) + len(held)


def _read(redis: Any, tags: list[bytes]) -> list[ParkedCallView]:
    """Those of these calls that wait."""
    pipeline = redis.pipeline(transaction=False)
    for tag in tags:
        pipeline.hgetall(keys.parked_key(tag.decode(errors="replace")))
        pipeline.hexists(keys.UNACKED, tag)
    answers = pipeline.execute()
    views = [
        _view(tag.decode(errors="replace"), fields) if is_there else None
        for tag, fields, is_there in zip(tags, answers[::2], answers[1::2], strict=True)
    ]
    return [view for view in views if view is not None and not view.decision]


def _now(redis: Any) -> float:
    seconds, microseconds = redis.time()
    return float(seconds) + float(microseconds) / 1_000_000


def _view(task_id: str, fields: dict[bytes, bytes]) -> ParkedCallView | None:
    texts = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
    try:
        return ParkedCallView(
            id=task_id,
            reason=texts["reason"],
            until=float(texts["until"]),
            digest=texts["digest"],
            needs=int(texts["needs"]),
            approvals=tuple(texts.get("approvals", "").splitlines()),
            decision=texts.get("decision", ""),
            about=json.loads(texts["about"]),
            message=texts.get("message", ""),
            principal=texts.get("principal", ""),
        )
    except (KeyError, ValueError):
        return None

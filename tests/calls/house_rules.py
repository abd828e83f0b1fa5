"""Interceptors of a user, some of which do what they should not; `test_interceptors` installs a copy of this file."""

import asyncio
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from tarsy_tasks.interceptors import Answer, CallRefused, Requeued
from tarsy_tasks.models import Attachment, ToolResult

SECRET = "hunter2hunter2"
GATES = {name: Path(__file__).with_name(name) for name in ("blocks", "waits")}


class Refusing:
    stage = "call"

    async def __call__(self, call, proceed):
        if call.arguments.get("key") == "refused":
            raise CallRefused(f"No {call.tool} on {call.server} today. Ask for something else.")
        return await proceed()


class Failing:
    stage = "message"

    async def __call__(self, call, proceed):
        raw = str(call.raw_arguments)
        if "raises-early" in raw:
            raise KeyError(SECRET)
        ending = await proceed()
        if "raises-late" in raw:
            raise KeyError(SECRET)
        return None if "returns-nothing" in raw else ending


class Blocking:
    stage = "attempt"

    async def __call__(self, call, proceed):
        if call.arguments.get("key") == "blocks":
            with GATES["blocks"].open() as gate:
                gate.read()  # until the other end is closed
        return await proceed()


class NotBlocking:
    stage = "attempt"

    async def __call__(self, call, proceed):
        if call.arguments.get("key") == "waits":
            await call.run_blocking(GATES["waits"].read_text)
        return await proceed()


class Changing:
    stage = "call"

    async def __call__(self, call, proceed):
        key = call.arguments.get("key")
        if key == "changed":
            call.arguments["key"] = "another"
        ending = await proceed()
        if key == "twice":
            return await proceed()
        if key == "leaks":
            secret = f"password: {SECRET}"
            attachment = Attachment(type="resource", uri=f"x://y?password={SECRET}", text=secret)
            answer = {"content": secret, "structured": {"password": SECRET}, "attachments": [attachment]}
            names = {"name": "desk.other", "call_id": "another", "attempts": 7}
            return Answer(ToolResult(outcome="tool_error", error_code=secret, **answer, **names))
        return ending


class Harmful:
    stage = "call"

    async def __call__(self, call, proceed):
        key = call.arguments.get("key")
        if key == "exits":
            sys.exit(3)
        if key == "awaits-what-is-cancelled":
            task = asyncio.create_task(asyncio.Event().wait())
            task.cancel()
            await task
        if key == "sends-two-at-once":
            await asyncio.gather(proceed(), proceed())
        ending = await proceed()
        return Requeued("again") if key == "requeues" else ending


class Postponing:
    stage = "call"

    def __init__(self):
        self.seen = {}

    async def __call__(self, call, proceed):
        if call.arguments.get("key") != "comes-back":
            return await proceed()
        times = self.seen.setdefault(call.id, [])
        times.append(time.monotonic())
        if len(times) < 3:
            return Requeued("not yet")
        shortest_s = min(after - before for before, after in pairwise(times))
        raise CallRefused(f"{call.delivery_count} {shortest_s}")


class Swallowing:
    stage = "call"

    async def __call__(self, call, proceed):
        try:
            return await proceed()
        except asyncio.CancelledError:
            call.arguments["key"] = "sent-after-its-end"
            return await proceed()


class Waiting:
    def __init__(self, stage):
        self.stage = stage

    async def __call__(self, call, proceed):
        key = call.raw_arguments["key"] if isinstance(call.raw_arguments, dict) else ""
        if key == f"waits-at-{self.stage}":
            await asyncio.Event().wait()
        if key == f"late-at-{self.stage}":
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        ending = await proceed()
        if key == f"keeps-at-{self.stage}":
            await asyncio.Event().wait()
        return ending


waiting_message, waiting_call, waiting_attempt = map(Waiting, ("message", "call", "attempt"))


class Tag:
    stage = "call"

    def __init__(self, name):
        self.tag = name

    async def __call__(self, call, proceed):
        order = call.state.setdefault("order", [])
        order.append(self.tag)
        if call.arguments.get("key") == "order" and len(order) == 2:
            raise CallRefused(" then ".join(order))
        return await proceed()


alpha, omega = Tag("alpha"), Tag("omega")
not_one = object()

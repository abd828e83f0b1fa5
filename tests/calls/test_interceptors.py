"""Interceptors of users: installed by entry points, ordered by the configuration, kept from doing harm."""

MODULE = """
import asyncio, time
from tarsy_tasks.interceptors import Answer, CallRefused


class Named:
    def __init__(self, name, stage):
        self.name, self.stage = name, stage


class Refusing:
    stage = "call"

    async def __call__(self, call, proceed):
        if call.arguments.get("key") == "refused":
            raise CallRefused(f"No {call.tool} on {call.server} today. Ask for something else.")
        return await proceed()


class Failing:
    stage = "message"

    async def __call__(self, call, proceed):
        if "raises early" in str(call.raw_arguments):
            raise KeyError("hunter2hunter2")
        ending = await proceed()
        if "raises late" in str(call.raw_arguments):
            raise KeyError("hunter2hunter2")
        return None if "returns none" in str(call.raw_arguments) else ending


class Blocking:
    stage = "attempt"

    async def __call__(self, call, proceed):
        if call.arguments.get("key") == "blocks":
            time.sleep(0.3)
        if call.arguments.get("key") == "waits":
            await call.run_blocking(time.sleep, 0.3)
        return await proceed()


class Changing:
    stage = "call"

    async def __call__(self, call, proceed):
        key = call.arguments.get("key")
        if key == "changed":
            call.arguments["key"] = "another"
        ending = await proceed()
        if key == "twice":
            ending = await proceed()
        if key == "leaks" and isinstance(ending, Answer):
            return Answer(ending.result.model_copy(update={"content": "password: hunter2hunter2"}))
        return ending


class Swallowing:
    stage = "call"

    async def __call__(self, call, proceed):
        try:
            return await proceed()
        except asyncio.CancelledError:
            return await proceed()


first_tag = second_tag = None


class Tag:
    stage = "call"

    def __init__(self, name):
        self.name = name

    async def __call__(self, call, proceed):
        order = call.state.setdefault("order", [])
        order.append(self.name)
        if call.arguments.get("key") == "order" and self.name == "inner":
            raise CallRefused(" ".join(order))
        return await proceed()


outer, inner = Tag("outer"), Tag("inner")
"""

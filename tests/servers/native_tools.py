"""A module with functions that are tools, for a server with the key `native`."""

import asyncio
import datetime
import enum
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from tarsy_tasks import native_tool

__all__ = ["SECRET"]

SECRET = "hunter-of-native-tools-7"


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Step(BaseModel):
    at: datetime.date
    what: str


@native_tool(read_only=True)
def plan(
    day: datetime.date, level: Level = Level.LOW, *, count: Annotated[int, Field(ge=1, le=5)] = 2
) -> dict[str, Any]:
    """Plan some days."""
    assert isinstance(level, Level)
    days = [day + datetime.timedelta(days=number) for number in range(count)]
    return {"level": level, "steps": [Step(at=each, what="work") for each in days]}


@native_tool(name="in-order", description="Give it back.")
async def in_order(items: list[int]) -> list[int]:
    await asyncio.sleep(0)
    return sorted(items)


@native_tool
def account() -> str:
    """Text with a secret."""
    print("a function may print, too")
    return f"password: {SECRET}"


@native_tool
def fail(how: str) -> Any:
    """Fail in some way."""
    if how == "exit":
        raise SystemExit(3)
    if how == "stop":
        raise StopIteration
    if how == "cancel":
        raise asyncio.CancelledError
    if how == "not json":
        return {"a": object()}
    raise LookupError(f"no such user, password: {SECRET}")


@native_tool
async def fail_later(how: str) -> Any:
    """Fail in some way, in a coroutine."""
    return fail(how)


@native_tool
def block(began: str, wait_for: str) -> str:
    """Block a thread, until a gate (`tests.gates`) is open."""
    Path(began).touch()
    with suppress(FileNotFoundError):
        Path(wait_for).read_bytes()
    return "late"


@native_tool
async def hang(cancelled: str) -> None:
    """Hang, until it is cancelled."""
    try:
        await asyncio.Event().wait()
    finally:
        Path(cancelled).touch()  # noqa: ASYNC240


@native_tool
def forbidden() -> str:
    """The policy denies it."""
    return f"ran in {threading.current_thread().name}"


def unmarked() -> None:
    """It is not a tool."""

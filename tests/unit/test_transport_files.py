"""What a server's configuration names in files is read beside the loop of all calls, before each connection."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.config import ServerConfig, resolve_variables
from tarsy_tasks.config.inheritance import Inheritance
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.masking import build_masker
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.time_budget import Suspension
from tarsy_tasks.worker.transport.child_watch import ChildWatch
from tarsy_tasks.worker.transport.credentials import Credentials
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tarsy_tasks.worker.transport.transports import ServerTransport

MANY = 2000
FEW_TURNS = 20
"""More than anything takes that stays on the loop."""


async def turns_during(work: Callable[[], Awaitable[object]]) -> int:
    """The turns that other tasks of the loop get meanwhile."""
    taken = 0

    async def take_turns() -> None:
        nonlocal taken
        while True:
            taken += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    await work()
    others.cancel()
    return taken


def open_transport(entry: dict[str, Any], secrets: set[str]) -> Callable[[], Awaitable[None]]:
    async def open_it() -> None:
        server = ServerConfig.model_validate({"name": "s", **entry})
        suspension = Suspension()
        transport = ServerTransport(
            server,
            ServerOutput("s", build_masker()),
            Inheritance(),
            ChildWatch(),
            secrets.update,
            LongWork(suspension),
            suspension,
        )
        async with transport.open(lambda _: None):
            pass

    return open_it


def test_variables_are_read_while_the_loop_goes_on(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("".join(f"TOKEN_{number}='hunter2-{number}'\n" for number in range(MANY)))
    secrets: set[str] = set()
    entry = {"command": str(tmp_path / "none"), "variables_file": str(path)}

    async def open_it() -> None:
        with pytest.raises(ConfigError, match="none` does not exist"):
            await open_transport(entry, secrets)()

    assert asyncio.run(turns_during(open_it)) > FEW_TURNS
    assert len(secrets) == MANY


def test_what_is_wrong_with_a_file_is_said_as_before(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.env does not exist"):
        asyncio.run(open_transport({"command": "x", "variables_file": str(tmp_path / ".env")}, set())())
    with pytest.raises(ConfigError, match=r"servers\.s\.ca_file: .*none cannot be used"):
        asyncio.run(open_transport({"url": "http://127.0.0.1:9/mcp", "ca_file": str(tmp_path / "none")}, set())())


def test_a_secret_is_read_again_while_the_loop_goes_on(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("old-secret")
    headers = {f"X-Key-{number}": f"${{file:{tmp_path}/key}}" for number in range(MANY)}
    config = ServerConfig.model_validate({"name": "s", "url": "http://127.0.0.1:9/mcp", "headers": headers})

    async def renew() -> int:
        credentials = Credentials(config, lambda _: None)
        credentials.use(resolve_variables(config, os.environ))
        refused = await credentials.current()
        (tmp_path / "key").write_text("new-secret")

        async def renew_it() -> None:
            found = await credentials.renew(refused)
            assert found is not None
            assert found.headers["X-Key-1"].get_secret_value() == "new-secret"

        return await turns_during(renew_it)

    assert asyncio.run(renew()) > FEW_TURNS

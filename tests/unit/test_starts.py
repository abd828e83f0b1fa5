"""What is said of a server that is missing, refuses, or takes too long; and how long the next attempt may take."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.masking.masker import build_masker
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.metrics import NO_TOOL, ToolMetrics
from tarsy_tasks.telemetry.prometheus import build_metric_families
from tarsy_tasks.worker.reporting.log_masking import mask_log
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connections import build_connections
from tarsy_tasks.worker.sessions.opening import SessionContext
from tests.processes import free_port, listening
from tests.servers import misbehaving_web, witness_stdio

Make = Callable[..., ServerConnection]


@pytest.fixture
def make() -> Iterator[Make]:
    context = SessionContext()

    def make(name: str = "nonpx", **entry: Any) -> ServerConnection:
        server = ServerConfig.model_validate({"name": name, "retry": {"attempts": 1}, **entry})
        return build_connections([server], context)[name]

    yield make
    context.child_watch.close()


def fail(connection: ServerConnection, times: int = 1) -> NoSessionError:
    """How the last of so many attempts fails."""

    async def connect() -> NoSessionError:
        try:
            for _ in range(times - 1):
                with pytest.raises(NoSessionError):
                    await connection.connected()
            with pytest.raises(NoSessionError) as failed:
                await connection.connected()
            return failed.value
        finally:
            await connection.close()

    return asyncio.run(connect())


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"command": "npxx"}, "`nonpx` could not start: `npxx` is not on the worker's PATH"),
        ({"command": "env", "env": {"PATH": "/nowhere"}}, "`env` is not on the worker's PATH"),
        ({"command": "/no/such/program"}, "`/no/such/program` does not exist on the worker's machine"),
        (
            {"command": "/bin/node x.js"},
            "`/bin/node x.js` does not exist on the worker's machine; its arguments belong",
        ),
        ({"command": "/etc/passwd"}, "`/etc/passwd` cannot be executed by the worker's user"),
        ({"command": "/bin"}, "`/bin` cannot be executed"),
        ({"command": "env", "cwd": "/no/such"}, "its working directory `/no/such` does not exist"),
        ({"command": "env", "env": {"T": "${WEATHER_TOKEN}"}}, "or write `${WEATHER_TOKEN:-default}`."),
    ],
)
def test_what_an_operator_must_correct_is_named_with_the_remedy(
    make: Make, caplog: pytest.LogCaptureFixture, entry: dict[str, Any], found: str
) -> None:
    mask_log(build_masker())
    error = fail(make(**entry))
    assert error.code is ErrorCode.SERVER_MISCONFIGURED
    # As it is answered, shown and logged: each passes a masker.
    assert found in build_masker().mask(error.text)
    assert found in build_masker().mask(error.operator_text)
    assert [found in message for message in caplog.messages] == [True]


def test_a_start_that_took_too_long_gets_more_time_up_to_a_limit(make: Make) -> None:
    connection = make(command="sleep", args=["60"], timeouts={"connect_s": 0.2})
    error = fail(connection, times=4)
    assert "did not complete the handshake within 0.8 s" in error.text
    assert "The next attempt may take 0.8 s. A program that npx or uvx has to download" in error.operator_text
    assert "set `timeouts.connect_s`" in error.operator_text
    assert connection.connection_attempts == (4, 0)


def test_an_installation_of_npm_is_not_interrupted(make: Make, tmp_path: Path) -> None:
    (tmp_path / "npx").symlink_to("/bin/sleep")
    connection = make(command=str(tmp_path / "npx"), args=["60"], timeouts={"connect_s": 0.2})
    error = fail(connection)
    assert "did not complete the handshake within 0.8 s" in error.text
    assert connection.connection_attempts == (1, 0)


def test_a_broken_installation_of_npx_is_named_with_the_remedy(make: Make, tmp_path: Path) -> None:
    (tmp_path / "npx").write_text("#!/bin/sh\necho 'npm error Invalid Version:' >&2\nexit 1\n")
    (tmp_path / "npx").chmod(0o755)
    error = fail(make(command=str(tmp_path / "npx")))
    assert "the folder `_npx` in the cache of npm" in error.operator_text
    assert "_npx" not in error.text


def test_a_server_that_needs_twice_its_time_comes_up(make: Make, tmp_path: Path) -> None:
    slow = ["-c", 'sleep 1.5; exec "$@"', "sh", sys.executable, "-S", "-E", witness_stdio.__file__]
    connection = make(command="sh", args=[*slow, str(tmp_path / "ledger")], timeouts={"connect_s": 1})

    async def connect() -> None:
        with pytest.raises(NoSessionError, match="within 1 s"):
            await connection.connected()
        while connection.session is None:
            try:
                await connection.connected()
            except NoSessionError:
                assert connection.connection_attempts[0] < 4
        await connection.close()

    asyncio.run(connect())
    assert connection.connection_attempts[1] == 1


def test_attempts_and_successes_are_exported() -> None:
    numbers = {"connection_attempts": 3, "connections": 2}
    families = {family.name: family for family in build_metric_families([ToolMetrics("k8s", NO_TOOL, numbers)])}
    for name, value in (("tarsy_connection_attempts", 3), ("tarsy_connections", 2)):
        [sample] = families[name].samples
        assert (sample.labels, sample.value) == ({"server": "k8s"}, value)


def test_an_address_is_named_without_its_credentials(make: Make) -> None:
    port = free_port()
    error = fail(make(url=f"http://bob:hunter2x@127.0.0.1:{port}/mcp?api_key=hunter2x"))
    assert error.text.startswith("MCP server `nonpx` is not available: ")
    assert f" (http://127.0.0.1:{port}/mcp)." in error.text
    assert "hunter2x" not in error.text + error.operator_text


@pytest.mark.parametrize("kind", ["status-401", "rpc-401"])
@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_401_says_what_it_asks_for_and_where_to_set_it(make: Make, tmp_path: Path, transport: str, kind: str) -> None:
    port = free_port()
    with listening([sys.executable, misbehaving_web.__file__, str(port)], port, tmp_path):
        error = fail(make(url=f"http://127.0.0.1:{port}/{transport}/connect/{kind}", transport=transport))
    assert error.code is ErrorCode.SERVER_REFUSED
    assert 'HTTP 401 Unauthorized (it asks for \'Bearer realm="bank", resource_metadata="https://h/x"\')' in error.text
    assert error.operator_text.endswith("Set `auth` in the configuration of the server, or correct it.")

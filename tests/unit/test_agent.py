"""What an agent may write: servers, names, arguments; and what its errors say. Nothing here reaches Redis."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import LimitExceeded, OperationalError
from redis import ConnectionError as RedisConnectionError
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tarsy_tasks import ErrorCode, Outcome, OutcomeError, ToolCall, ToolExecutor, ToolResult, health, tool_signature
from tarsy_tasks.agent.redis_errors import may_have_been_sent
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.submitted import build_call, build_calls
from tarsy_tasks.catalogue import ToolCatalogue
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.config import load_config
from tarsy_tasks.errors import ConfigError, ToolNameError
from tarsy_tasks.tool_names import function_name
from tests.processes import free_port


def configuration(path: Path, *servers: str) -> Path:
    path.write_text(json.dumps({"mcpServers": {server: {"command": "none"} for server in servers}}))
    return path


@pytest.fixture(scope="module", autouse=True)
def _configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = configuration(tmp_path_factory.mktemp("agent") / "mcp.json", "desk", "shop")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TARSY_MCP_CONFIG", str(path))
        yield


@pytest.fixture
def other_app(tmp_path: Path, redis_url: str) -> Iterator[TarsyApp]:
    """An application that knows another server than the configuration file."""
    with build_app({"broker_url": redis_url, "result_backend": redis_url}) as app:
        app.mcp_config = load_config(configuration(tmp_path / "other.json", "bank"))
        yield app


def test_a_plain_string_for_servers_is_refused() -> None:
    with pytest.raises(ValueError, match=r'servers is the plain string "desk"; write servers=\["desk"\]'):
        ToolExecutor("desk")
    with pytest.raises(ValueError, match=r'tool_filter\[\'desk\'\]=\["find"\]'):
        ToolExecutor(tool_filter={"desk": "find"})
    with pytest.raises(ValueError, match=r'write servers=\["desk"\]'):
        health.statuses("desk")
    with pytest.raises(ValueError, match=r'write servers=\["desk"\]'):
        ToolCatalogue("desk")


def test_an_unknown_server_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"not configured or not enabled: nowhere. Configured: desk, shop"):
        ToolExecutor(["desk", "nowhere"])


def test_servers_are_those_of_the_given_application(other_app: TarsyApp) -> None:
    assert ToolExecutor(["bank"], app=other_app)
    with pytest.raises(ValueError, match="Configured: bank"):
        ToolExecutor(["desk"], app=other_app)
    assert health.statuses(app=other_app).keys() == {"bank"}
    assert ToolCatalogue(app=other_app).servers() == {}
    with pytest.raises(ToolNameError, match="Servers: bank"):
        tool_signature("desk.echo", app=other_app)


def test_a_stock_application_has_the_servers_of_the_file(redis_url: str) -> None:
    with Celery("stock", broker=redis_url, backend=redis_url, set_as_current=False) as app:
        assert health.statuses(app=app).keys() == {"desk", "shop"}
        with pytest.raises(ValueError, match="Configured: desk, shop"):
            ToolExecutor(["bank"], app=app)


def test_named_servers_need_no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TARSY_MCP_CONFIG")
    monkeypatch.chdir(tmp_path)
    assert ToolExecutor(["anything"])
    assert tool_signature("anything:echo").args[:2] == ("anything", "echo")
    with pytest.raises(ConfigError, match="no configuration"):
        ToolExecutor()


def test_a_selected_tool_may_be_called_by_its_function_name() -> None:
    tool = "deployment.history/of_all_revisions"
    selection = Selection(["desk"], {"desk": [tool, "echo"]}, None)
    assert selection.resolve(function_name("desk", tool)) == ("desk", tool)
    assert selection.resolve(function_name("desk", tool, 24)) == ("desk", tool)
    with pytest.raises(ToolNameError, match="not among the tools selected"):
        selection.resolve(function_name("desk", f"{tool}/other"))


@pytest.mark.parametrize("name", ["desk.echo", "desk:echo", "desk__echo", "mcp_desk_echo", "functions.desk__echo"])
def test_a_signature_takes_the_names_that_an_executor_takes(name: str) -> None:
    signature = tool_signature(name, {"text": "x"})
    assert signature.args[:3] == ("desk", "echo", {"text": "x"})
    assert signature.options["queue"] == "mcp.desk"
    assert signature.immutable


@pytest.mark.parametrize(
    ("name", "code"), [("nowhere.echo", ErrorCode.UNKNOWN_SERVER), ("echo", ErrorCode.INVALID_NAME)]
)
def test_a_signature_of_an_unknown_server_is_refused(name: str, code: ErrorCode) -> None:
    with pytest.raises(ToolNameError, match=r"Servers, closest first: .*desk") as caught:
        tool_signature(name)
    assert caught.value.code is code


def test_a_call_is_a_toolcall_or_a_name_and_arguments() -> None:
    assert build_call("desk.echo", MappingProxyType({"a": 1})) == ToolCall(name="desk.echo", arguments={"a": 1})
    assert build_call("desk.echo").id == ""
    call = ToolCall(name="desk.echo")
    assert build_call(call) is call
    assert build_calls([call, ("desk.echo", "a: 1")])[1].arguments == "a: 1"


def test_what_is_no_call_is_refused_before_anything_is_sent() -> None:
    tools = ToolExecutor()
    with pytest.raises(ValueError, match="given twice"):
        tools.execute(ToolCall(name="desk.echo"), {"a": 1})
    for wrong in ("desk.echo", [("desk.echo",)], [{"name": "desk.echo"}]):
        with pytest.raises(ValueError, match="each call must be a ToolCall or a pair"):
            tools.execute_many(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not JSON"):
        tools.execute_many([("desk.echo", {"a": 1}), ("desk.echo", {"a": {1}})])


def test_raise_for_outcome_gives_the_result_or_raises_with_it() -> None:
    fine = ToolResult(call_id="", name="desk.echo", content="hello")
    assert fine.raise_for_outcome() is fine
    failed = fine.model_copy(update={"outcome": Outcome.TIMEOUT, "error_code": ErrorCode.NO_ANSWER})
    with pytest.raises(OutcomeError, match=r"^desk.echo: timeout \(NO_ANSWER\): hello$") as caught:
        failed.raise_for_outcome()
    assert caught.value.result is failed


def test_an_outcome_error_reaches_another_process(redis_url: str) -> None:
    failed = ToolResult(call_id="7", name="desk.echo", content="no", outcome=Outcome.TOOL_ERROR)
    with build_app({"broker_url": redis_url, "result_backend": redis_url}) as app:
        backend: Any = app.backend
        try:
            failed.raise_for_outcome()
        except OutcomeError as error:
            stored = backend.encode(backend.prepare_exception(error, "json"))
        again = backend.exception_to_python(backend.decode(stored))
    assert isinstance(again, OutcomeError)
    assert ToolResult.model_validate(again.result) == failed


def refused_connection() -> Exception:
    try:
        Redis(port=free_port(), retry=Retry(NoBackoff(), 0)).ping()
    except RedisConnectionError as error:
        return error
    raise AssertionError


def lost_then_refused() -> Exception:
    error = deepest = refused_connection()
    while deepest.__context__ is not None:
        deepest = deepest.__context__
    deepest.__context__ = RedisConnectionError("Connection closed by server.")
    return error


def wrapped(error: Exception) -> Exception:
    wrapper = OperationalError(str(error))
    wrapper.__cause__ = error
    return wrapper


@pytest.mark.parametrize(
    ("error", "may_have"),
    [
        (refused_connection(), False),
        (wrapped(refused_connection()), False),
        (LimitExceeded(), False),
        (RedisConnectionError("Connection closed by server."), True),
        (wrapped(RedisConnectionError("Connection closed by server.")), True),
        (lost_then_refused(), True),
    ],
)
def test_only_a_refused_connection_proves_that_nothing_was_sent(error: Exception, may_have: bool) -> None:
    assert may_have_been_sent(error) is may_have

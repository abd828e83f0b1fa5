"""Which tool `up` calls, unasked, to show that a server works."""

from typing import Any

import pytest

from tarsy_tasks import ToolDefinition
from tarsy_tasks.cli.first_calls import find_harmless


def tool(name: str, description: str = "", hints: dict[str, Any] | None = None, **others: Any) -> ToolDefinition:
    annotations = {"readOnlyHint": True, **(hints or {})}
    return ToolDefinition(
        name=f"desk.{name}", server="desk", tool=name, description=description, annotations=annotations, **others
    )


@pytest.mark.parametrize(
    "name",
    [
        *("now", "list_allowed_directories", "get-tiny-image", "namespaces_list", "readGraph", "list_authors"),
        *("keyboard_layout", "tokenize", "envelope_sizes"),
    ],
)
def test_a_tool_that_only_reads_is_harmless(name: str) -> None:
    assert find_harmless([tool(name)]) == tool(name)


@pytest.mark.parametrize(
    "name",
    [
        *("get-env", "printEnv", "dotenv", "environment", "get_environment_variables", "listVariables", "ENV"),
        *(
            "list_secrets",
            "getSecret",
            "tokens",
            "access-token",
            "showCredentials",
            "creds",
            "read_passwords",
            "passwd",
        ),
        *("apiKeys", "API_KEY", "list_keys", "get_auth", "oauth_status", "authorization", "cookies", "sessions"),
        *("configuration_view", "getConfig", "settings", "login", "debugInfo", "dump_state", "private_notes"),
    ],
)
def test_a_tool_whose_name_is_of_a_secret_is_not_called(name: str) -> None:
    assert find_harmless([tool(name)]) is None


@pytest.mark.parametrize(
    "saying",
    [
        {"description": "Returns all environment variables, helpful for debugging MCP server configuration"},
        {"description": "What the server knows, with its API keys"},
        {"title": "Print the environment"},
        {"hints": {"title": "Stored credentials"}},
    ],
)
def test_a_tool_that_says_that_it_shows_secrets_is_not_called(saying: dict[str, Any]) -> None:
    assert find_harmless([tool("info", **saying)]) is None


@pytest.mark.parametrize(
    ("hints", "schema"),
    [
        ({"readOnlyHint": False}, {}),
        ({"readOnlyHint": None}, {}),
        ({"readOnlyHint": "yes"}, {}),
        ({"destructiveHint": True}, {}),
        ({}, {"required": ["path"]}),
    ],
)
def test_a_tool_that_may_change_something_is_not_called(hints: dict[str, Any], schema: dict[str, Any]) -> None:
    assert find_harmless([tool("look", hints=hints, input_schema=schema)]) is None


def test_a_tool_that_stays_within_its_server_is_preferred() -> None:
    within = tool("clock", hints={"openWorldHint": False})
    secret = tool("get_env", hints={"openWorldHint": False})
    assert find_harmless([secret, tool("weather"), within]) == within
    assert find_harmless([secret, tool("weather")]) == tool("weather")

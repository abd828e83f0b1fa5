"""The entry of a server: its keys, their defaults and what they mean."""

import json

import pytest
from pydantic import SecretStr, ValidationError

from tarsy_tasks.config import BearerAuth, Masking, ServerConfig, Timeouts

SECRET = "hunter2-c0ffee"


def load_one(load_text, entry):
    return load_text(json.dumps({"mcpServers": {"one": entry}})).servers["one"]


def test_a_server_has_a_default_for_every_attribute(load_text):
    server = load_one(load_text, {"command": "npx"})
    assert (server.name, server.transport, server.command, server.args, server.env) == ("one", "stdio", "npx", [], {})
    assert (server.cwd, server.url, server.headers, server.auth, server.ca_file) == (None, None, {}, None, None)
    assert (server.enabled, server.required, server.verify_ssl, server.instructions) == (True, True, True, None)
    assert server.max_message_bytes == 16 * 1024 * 1024
    assert server.timeouts == Timeouts(connect_s=30, list_s=10, call_s=60, recreate_s=10, tools={})
    assert server.masking == Masking(enabled=True, groups=["basic"], patterns=[])


def test_every_key_of_a_stdio_server_arrives(load_text):
    entry = {
        "type": "stdio",
        "description": "d",
        "command": "npx",
        "args": ["-y", "x"],
        "env": {"A": "1"},
        "cwd": "/srv",
        "required": False,
        "enabled": False,
        "max_message_bytes": 1024,
        "instructions": "use it",
        "timeouts": {"connect_s": 1, "list_s": 2.5, "call_s": 3, "recreate_s": 4, "tools": {"get_*": 5}},
        "session": "per_call",
        "retry": {"attempts": 3, "min_wait_s": 1, "max_wait_s": 2},
        "replay": "never",
        "idempotent_tools": ["get_*"],
        "masking": {"enabled": False, "groups": ["security", "email"], "patterns": ["ACME-(\\d+)"]},
    }
    server = load_one(load_text, entry)
    assert server.model_dump(exclude_unset=True, exclude={"name", "transport"}) == {
        key: value for key, value in entry.items() if key != "type"
    }


def test_every_key_of_an_http_server_arrives(load_text):
    server = load_one(
        load_text,
        {
            "url": "https://h:8443/mcp?x=1",
            "headers": {"X-Run": "7"},
            "auth": {"type": "bearer", "token": "t"},
            "verify_ssl": False,
            "ca_file": "/etc/ca.pem",
        },
    )
    assert server.transport == "http"
    assert (server.url, server.headers, server.verify_ssl) == ("https://h:8443/mcp?x=1", {"X-Run": "7"}, False)
    assert server.ca_file == "/etc/ca.pem"
    assert server.auth
    assert server.auth == BearerAuth(type="bearer", token=SecretStr("t"))


@pytest.mark.parametrize("key", ["type", "transport"])
@pytest.mark.parametrize("word", ["http", "streamable-http", "streamable_http", "streamableHttp"])
def test_all_spellings_of_the_http_transport_mean_http(load_text, key, word):
    assert load_one(load_text, {key: word, "url": "http://h"}).transport == "http"


def test_a_bearer_token_is_short_for_auth(load_text):
    auth = load_one(load_text, {"url": "http://h", "auth": {"type": "bearer", "token": "${T}"}}).auth
    assert load_one(load_text, {"url": "http://h", "bearer_token": "${T}"}).auth == auth


def test_a_disabled_server_stays_in_the_configuration(load_text):
    servers = {"a": {"command": "x", "disabled": True}, "b": {"command": "x", "disabled": False}}
    config = load_text(json.dumps({"mcpServers": servers}))
    assert [server.enabled for server in config.servers.values()] == [False, True]
    assert list(config.enabled_servers) == ["b"]


@pytest.mark.parametrize(
    ("tool", "seconds"),
    [("get_pods", 5), ("get_logs", 300), ("list", 60), ("GET_pods", 60), ("get_big_x", 5), ("x.big", 7)],
)
def test_the_timeout_of_a_tool_is_by_name_then_by_first_glob(tool, seconds):
    timeouts = Timeouts(tools={"get_*": 5, "*big*": 7, "get_logs": 300})
    assert timeouts.call_timeout_s(tool) == seconds


def test_the_repr_of_a_server_shows_no_possible_secret():
    server = ServerConfig.model_validate(
        {
            "name": "a",
            "url": f"https://user:{SECRET}@h/?key={SECRET}",
            "headers": {"X": SECRET},
            "auth": {"type": "bearer", "token": SECRET},
        }
    )
    child = ServerConfig(name="b", command="x", args=["--token", SECRET], env={"TOKEN": SECRET})
    assert SECRET not in f"{server!r} {server} {child!r} {child} {server.auth!r} {server.auth}"


def test_models_are_frozen_and_their_errors_show_no_input():
    server = ServerConfig(name="a", command="x")
    with pytest.raises(ValidationError):
        server.command = "y"  # type: ignore[misc]
    with pytest.raises(ValidationError) as caught:
        ServerConfig.model_validate({"name": "a", "command": "x", "env": {"A": [SECRET]}, SECRET[:3]: SECRET})
    assert SECRET not in str(caught.value)

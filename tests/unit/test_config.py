"""Configuration files: what is accepted, what it means, and how an error reads."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from tarsy_tasks.config import BearerAuth, Masking, ServerConfig, Timeouts, config_schema, find_config_path, load_config
from tarsy_tasks.config.file import read_config_file
from tarsy_tasks.config.server_ids import build_server_id
from tarsy_tasks.errors import ConfigError

SECRET = "hunter2-c0ffee"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("config")


@pytest.fixture
def load(tmp_path):
    """Load a text as a file of that name."""

    def load_text(text, name="mcp.json"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(path)

    return load_text


@pytest.fixture
def problems(load, tmp_path):
    """The lines of the error that loading a text ends in, without the directory."""

    def load_broken(text, name="mcp.json"):
        with pytest.raises(ConfigError) as caught:
            load(text, name)
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return load_broken


def load_one(load, entry, name="mcp.json"):
    text = (
        yaml.safe_dump({"mcpServers": {"one": entry}})
        if name.endswith("yaml")
        else json.dumps({"mcpServers": {"one": entry}})
    )
    return load(text, name).servers["one"]


# What a file means


def test_a_server_has_all_attributes_of_both_kinds_with_their_defaults(load):
    server = load_one(load, {"command": "npx"})
    assert (server.name, server.transport, server.command, server.args, server.env) == ("one", "stdio", "npx", [], {})
    assert (server.cwd, server.url, server.headers, server.auth, server.ca_file) == (None, None, {}, None, None)
    assert (server.enabled, server.required, server.verify_ssl, server.instructions) == (True, True, True, None)
    assert server.max_message_bytes == 16 * 1024 * 1024
    assert server.timeouts == Timeouts(connect_s=30, list_s=10, call_s=60, recreate_s=10, tools={})
    assert server.masking == Masking(enabled=True, groups=["basic"], patterns=[])


def test_every_key_of_a_stdio_server_arrives(load):
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
    server = load_one(load, entry)
    assert server.model_dump(exclude_unset=True, exclude={"name", "transport"}) == {
        key: value for key, value in entry.items() if key != "type"
    }


def test_every_key_of_an_http_server_arrives(load):
    server = load_one(
        load,
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
def test_all_spellings_of_the_http_transport_mean_http(load, key, word):
    assert load_one(load, {key: word, "url": "http://h"}).transport == "http"


def test_a_bearer_token_is_short_for_auth(load):
    auth = load_one(load, {"url": "http://h", "auth": {"type": "bearer", "token": "${T}"}}).auth
    assert load_one(load, {"url": "http://h", "bearer_token": "${T}"}).auth == auth


def test_disabled_is_the_inverse_of_enabled_and_disabled_servers_stay_in_the_configuration(load):
    config = load('{"mcpServers": {"a": {"command": "x", "disabled": true}, "b": {"command": "x", "disabled": false}}}')
    assert [server.enabled for server in config.servers.values()] == [False, True]
    assert list(config.enabled_servers) == ["b"]


def test_no_servers_are_a_valid_configuration(load):
    assert load('{"$schema": "https://x/schema.json", "mcpServers": {}}').servers == {}


SEED_LIST = """
mcp:
  servers:
    - name: k8s
      transport:
        type: stdio
        command: npx
        args: [-y, kubernetes-mcp-server@latest]
      timeouts: {list_s: 5}
    - name: github
      transport: {type: http, url: "https://h/mcp", bearer_token: "{{.TOKEN}}", verify_ssl: false, timeout: 90}
"""

SEED_MAPPING = """
mcp:
  servers:
    k8s: {transport: {type: stdio, command: npx, args: [-y, kubernetes-mcp-server@latest]}, timeouts: {list_s: 5}}
    github:
      transport: {type: http, url: "https://h/mcp", bearer_token: "{{.TOKEN}}", verify_ssl: false}
      timeouts: {call_s: 90}
"""

COMMON_FORM = """
mcpServers:
  k8s: {command: npx, args: [-y, kubernetes-mcp-server@latest], timeouts: {list_s: 5}}
  github:
    url: https://h/mcp
    auth: {type: bearer, token: "{{.TOKEN}}"}
    verify_ssl: false
    timeouts: {call_s: 90}
"""


@pytest.mark.parametrize("text", [SEED_LIST, SEED_MAPPING])
def test_the_seed_forms_mean_the_same_as_the_common_form(load, text):
    assert load(text, "mcp.yaml") == load(COMMON_FORM, "mcp.yml")


def test_both_roots_may_stand_in_one_file(load):
    config = load('{"mcpServers": {"a": {"command": "x"}}, "mcp": {"servers": [{"name": "b", "command": "x"}]}}')
    assert list(config.servers) == ["a", "b"]


def test_json_may_have_comments_and_trailing_commas(load):
    config = load(
        """
        // one "
        {
          /* two
             lines, } */
          "mcpServers": {
            "a": {"url": "https://x//y/*z*/", "headers": {"A": "a,] // no comment", "B": "\\"/*"},}, // three
          },
        }
        """
    )
    assert config.servers["a"].url == "https://x//y/*z*/"
    assert config.servers["a"].headers == {"A": "a,] // no comment", "B": '"/*'}
    assert load('{"mcpServers": {}} // to the end').servers == {}


def test_yaml_has_the_types_of_json_only(load):
    args = (
        "[2024-01-01, 12:30, yes, on, No, 0o7, 007, 1_000, 0x1f, .5, +1, .nan, 1e, 2024-01-01T00:00:00Z, True, '5', <<]"
    )
    server = load(f"mcpServers: {{a: {{command: y, args: {args}, enabled: false}}}}", "mcp.yaml").servers["a"]
    assert (server.command, server.enabled) == ("y", False)
    words = "2024-01-01 12:30 yes on No 0o7 007 1_000 0x1f .5 +1 .nan 1e 2024-01-01T00:00:00Z True 5 <<"
    assert server.args == words.split()


def test_keys_of_yaml_are_text_whatever_they_look_like(load):
    config = load("mcpServers: {1: {command: a}, yes: {command: b}, null: {command: c, env: {2.0: x}}}", "mcp.yaml")
    assert list(config.servers) == ["1", "yes", "null"]
    assert config.servers["null"].env == {"2.0": "x"}


def test_yaml_anchors_and_merge_keys_work(load):
    config = load(
        """
        mcpServers:
          a: &a {url: "http://a", timeouts: &slow {call_s: 300, list_s: 1}, headers: {A: a}}
          b: {<<: *a, url: "http://b", timeouts: {<<: [*slow, {list_s: 2, connect_s: 3}], call_s: 9}}
        """,
        "mcp.yaml",
    )
    assert config.servers["b"].url == "http://b"
    assert config.servers["b"].headers == {"A": "a"}
    assert config.servers["b"].timeouts == Timeouts(call_s=9, list_s=1, connect_s=3)
    assert config.servers["a"].timeouts == Timeouts(call_s=300, list_s=1)


def test_entries_that_share_an_anchor_do_not_change_each_other(load):
    config = load(
        """
        mcp:
          servers:
            - {name: a, timeouts: &t {list_s: 1}, transport: {url: "http://a", timeout: 5}}
            - {name: b, timeouts: *t, transport: {url: "http://b", timeout: 6}}
        """,
        "mcp.yaml",
    )
    assert [server.timeouts.call_s for server in config.servers.values()] == [5, 6]


# Ids


@pytest.mark.parametrize(
    ("name", "server_id"),
    [
        ("k8s", "k8s"),
        ("a-b_c", "a-b_c"),
        ("A", "A"),
        ("my server", "my-server"),
        ("my.server", "my-server"),
        ("a / b", "a-b"),
        ("a__b", "a_b"),
        ("a____b", "a_b"),
        ("_a-", "a"),
        ("-_-a_-_", "a"),
        ("@scope/pkg", "scope-pkg"),
        ("café", "caf"),
        ("a-_b", "a-_b"),
        ("x\n", "x"),
    ],
)
def test_a_name_that_is_no_id_gets_an_alias(load, name, server_id):
    config = load(json.dumps({"mcpServers": {name: {"command": "x"}}}))
    assert {key: server.name for key, server in config.servers.items()} == {server_id: server_id}


@given(st.text(max_size=40))
@example("a_" * 10_000)
@example("a" + "-" * 10_000 + "!")
def test_an_alias_is_an_id_and_its_own_alias(name):
    try:
        server_id = build_server_id(name)
    except ValueError:
        return
    assert build_server_id(server_id) == server_id
    assert ServerConfig(name=server_id, command="x").name == server_id


@pytest.mark.parametrize("name", ["a__b", "_a", "a-", "a.b", "", "a b", "a\n", "é", "a" + "-" * 10_000])
def test_a_server_cannot_be_built_with_a_name_that_is_no_id(name):
    with pytest.raises(ValidationError):
        ServerConfig(name=name, command="x")


# Timeouts


@pytest.mark.parametrize(
    ("tool", "seconds"),
    [("get_pods", 5), ("get_logs", 300), ("list", 60), ("GET_pods", 60), ("get_big_x", 5), ("x.big", 7)],
)
def test_a_tool_s_timeout_is_that_of_its_name_then_of_the_first_glob(tool, seconds):
    timeouts = Timeouts(tools={"get_*": 5, "*big*": 7, "get_logs": 300})
    assert timeouts.call_timeout_s(tool) == seconds


# Finding the file


def test_the_variable_goes_before_the_working_directory_and_json_before_yaml(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TARSY_MCP_CONFIG", raising=False)
    (tmp_path / "mcp.yaml").write_text("mcpServers: {y: {command: x}}")
    assert find_config_path() == Path("mcp.yaml")
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"j": {"command": "x"}}}')
    assert find_config_path() == Path("mcp.json")
    assert list(load_config().servers) == ["j"]
    (tmp_path / "other.yml").write_text("mcpServers: {o: {command: x}}")
    monkeypatch.setenv("TARSY_MCP_CONFIG", "other.yml")
    assert list(load_config().servers) == ["o"]
    monkeypatch.setenv("TARSY_MCP_CONFIG", "")
    assert find_config_path() == Path("mcp.json")


def test_without_a_file_the_error_says_what_was_looked_for_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TARSY_MCP_CONFIG", raising=False)
    with pytest.raises(ConfigError) as caught:
        load_config()
    for part in ("TARSY_MCP_CONFIG is not set", str(tmp_path), "mcp.json or mcp.yaml", '{"mcpServers": {}}'):
        assert part in str(caught.value)


def test_a_variable_that_names_no_file_is_named_in_the_error(tmp_path, monkeypatch):
    monkeypatch.setenv("TARSY_MCP_CONFIG", str(tmp_path / "gone.json"))
    with pytest.raises(ConfigError, match=r"gone\.json: there is no such file.*TARSY_MCP_CONFIG"):
        load_config()


# Errors: the whole text, because people read it

KEYS = (
    "args, auth, bearer_token, bearer_token_file, ca_file, command, cwd, description, disabled, enabled, env, "
    "env_file, headers, headers_file, idempotent_tools, inherit_env, instructions, masking, max_concurrency, "
    "max_message_bytes, pin, replay, required, retry, session, timeouts, transport, type, url, url_file, verify_ssl"
)
MASKING_NAMES = (
    "all, api_key, aws_access_key, aws_secret_key, base64_secret, base64_short, basic, certificate, "
    "certificate_authority_data, cloud, email, github_token, kubernetes, kubernetes_secret, password, private_key, "
    "secret_key, secrets, security, slack_token, ssh_key, token"
)
TIMEOUT_KEYS = "call_s, connect_s, list_s, recreate_s, tools"
TRANSPORTS = "http, sse, stdio, streamable-http, streamableHttp, streamable_http"

JSON_ERRORS = {
    # The top level
    '[{"mcpServers": {}}]': "1:1: found a list, expected a mapping with the key `mcpServers`",
    '"x"': "1:1: found text, expected a mapping with the key `mcpServers`",
    "null": "1:1: found nothing (null), expected a mapping with the key `mcpServers`",
    "{}": "1:1: names no servers, expected the key `mcpServers` with a mapping of names to servers",
    '{"$schema": 1, "mcpServers": {}}': "1:2: $schema: found a number, expected text",
    '{"servers": {}}': "1:2: servers: unknown key; did you mean `mcpServers`? Known: $schema, mcp, mcpServers",
    '{"mcpservers": {}}': "1:2: mcpservers: unknown key; did you mean `mcpServers`? Known: $schema, mcp, mcpServers",
    '{"mcpServers": [], }': "1:2: mcpServers: found a list, expected a mapping of names to servers",
    '{"mcpServers": NaN}': "1:2: mcpServers: found a number, expected a mapping of names to servers",
    # The seed's root
    '{"mcp": []}': "1:2: mcp: found a list, expected a mapping with the key `servers`",
    '{"mcp": {}}': "1:2: mcp.servers: required, but missing",
    '{"mcp": {"server": {}}}': "1:10: mcp.server: unknown key; did you mean `servers`? Known: servers",
    '{"mcp": {"servers": 1}}': "1:10: mcp.servers: found a number, expected a mapping of names to servers",
    '{"mcp": {"servers": ["x"]}}': "1:22: mcp.servers[0]: found text, expected a mapping with a `name`",
    '{"mcp": {"servers": [{"command": "x"}]}}': "1:22: mcp.servers[0].name: required, but missing",
    '{"mcp": {"servers": [{"name": 5, "command": "x"}]}}': "1:23: mcp.servers[0].name: found a number, expected text",
    '{"mcp": {"servers": [{"name": "a", "command": "x"},\n{"name": "a", "command": "y"}]}}': (
        '2:1: mcp.servers[1]: the name "a" gives the id `a`, as does "a" of `mcp.servers[0]`; rename one'
    ),
    # Names
    '{"mcpServers": {"a b": {"command": "x"},\n "a-b": {"command": "x"}}}': (
        '2:2: mcpServers.a-b: the name "a-b" gives the id `a-b`, as does "a b" of `mcpServers["a b"]`; rename one'
    ),
    '{"mcpServers": {"é!": {"command": "x"}}}': (
        '1:17: mcpServers["é!"]: a server\'s name needs a letter or a digit of ASCII'
    ),
    '{"mcpServers": {"a": {"name": "a", "command": "x"}}}': (
        "1:23: mcpServers.a.name: unknown key; the server's name is the key of its entry"
    ),
    '{"mcpServers": {"a": {"command": "x"},\n\n  "a": {"command": "x"}}}': (
        "3:3: mcpServers.a: given twice, first in line 1"
    ),
    # Which transport
    '{"mcpServers": {"a": "npx"}}': ("1:17: mcpServers.a: found text, expected a mapping with a `command` or a `url`"),
    '{"mcpServers": {"a": {}}}': (
        "1:17: mcpServers.a: has neither a `command` (stdio) nor a `url` (http), expected one of them"
    ),
    '{"mcpServers": {"a": {"command": "x", "url": "http://h"}}}': (
        "1:17: mcpServers.a: has a `command` (stdio) and a `url` (http), expected one of them"
    ),
    '{"mcpServers": {"a": {"type": "stdio", "url": "http://h"}}}': (
        "1:17: mcpServers.a: has the transport stdio and a `url`, expected a `command`; or the transport http"
    ),
    '{"mcpServers": {"a": {"type": "http", "command": "x"}}}': (
        "1:17: mcpServers.a: has the transport http and a `command`, expected a `url`; or the transport stdio"
    ),
    '{"mcpServers": {"a": {"command": "x", "headers": {"A": "b"}, "verify_ssl": false}}}': (
        "1:17: mcpServers.a: has headers, verify_ssl: without meaning for the transport stdio, so remove"
    ),
    '{"mcpServers": {"a": {"url": "http://h", "env": {"A": "b"}}}}': (
        "1:17: mcpServers.a: has env: without meaning for the transport http, so remove"
    ),
    '{"mcpServers": {"a": {"url": "http://h", "bearer_token": "t", "headers": {"authorization": "b"}}}}': (
        "1:17: mcpServers.a: has `auth` and a header Authorization, which would be the same header; keep one"
    ),
    '{"mcpServers": {"a": {"type": "sse", "command": "x"}}}': (
        "1:17: mcpServers.a: has the transport sse and a `command`, expected a `url`; or the transport stdio"
    ),
    '{"mcpServers": {"a": {"type": "sse", "url": "http://h", "cwd": "/"}}}': (
        "1:17: mcpServers.a: has cwd: without meaning for the transport sse, so remove"
    ),
    '{"mcpServers": {"a": {"transport": "studio", "command": "x"}}}': (
        f"1:23: mcpServers.a.transport: found 'studio', expected a transport; did you mean `stdio`? Known: {TRANSPORTS}"
    ),
    '{"mcpServers": {"a": {"transport": 5, "command": "x"}}}': (
        "1:23: mcpServers.a.transport: found a number, expected `stdio`, `http` or `sse`"
    ),
    '{"mcpServers": {"a": {"transport": "stdio", "type": "http", "command": "x"}}}': (
        "1:45: mcpServers.a.type: contradicts `mcpServers.a.transport`; keep one of the two"
    ),
    # Keys
    '{"mcpServers": {"a": {"comand": "y", "command": "x"}}}': (
        f"1:23: mcpServers.a.comand: unknown key; did you mean `command`? Known: {KEYS}"
    ),
    '{"mcpServers": {"a": {"timeout": 5, "command": "x"}}}': (
        f"1:23: mcpServers.a.timeout: unknown key; did you mean `timeouts`? Known: {KEYS}"
    ),
    '{\n "mcpServers": {"a": {"command": "x",\n  "timeouts": {"call": 5}}}}': (
        f"3:16: mcpServers.a.timeouts.call: unknown key; did you mean `call_s`? Known: {TIMEOUT_KEYS}"
    ),
    '{"mcpServers": {"a": {"url": "http://h", "auth": {"type": "bearer", "token": "t", "x": "y"}}}}': (
        "1:83: mcpServers.a.auth.x: unknown key; Known: token, token_file, type"
    ),
    '{"mcpServers": {"a": {"transport": {"kind": "http", "url": "http://h"}}}}': (
        "1:37: mcpServers.a.transport.kind: unknown key; Known: "
        "args, auth, bearer_token, bearer_token_file, ca_file, command, cwd, env, env_file, headers, headers_file, "
        "timeout, type, url, url_file, verify_ssl"
    ),
    '{"mcpServers": {"a": {"transport": {"url": "http://h", "timeout": 5}, "timeouts": {"call_s": 6}}}}': (
        "1:56: mcpServers.a.transport.timeout: contradicts `mcpServers.a.timeouts.call_s`; keep one of the two"
    ),
    '{"mcpServers": {"a": {"command": "x", "enabled": true, "disabled": true}}}': (
        "1:56: mcpServers.a.disabled: contradicts `mcpServers.a.enabled`; keep one of the two"
    ),
    # Values
    '{"mcpServers": {"a": {"command": ["x"]}}}': "1:23: mcpServers.a.command: found a list, expected text",
    '{"mcpServers": {"a": {"command": ""}}}': "1:23: mcpServers.a.command: found empty text, expected some",
    '{"mcpServers": {"a": {"command": "x", "args": "-y"}}}': "1:39: mcpServers.a.args: found text, expected a list",
    '{"mcpServers": {"a": {"command": "x", "args": ["-y",\n 8080]}}}': (
        "2:2: mcpServers.a.args[1]: found a number, expected text; put it in quotes"
    ),
    '{"mcpServers": {"a": {"command": "x", "env": null}}}': (
        "1:39: mcpServers.a.env: found nothing (null), expected a mapping"
    ),
    '{"mcpServers": {"a": {"command": "x", "env": {"DEBUG": true}}}}': (
        "1:47: mcpServers.a.env.DEBUG: found true or false, expected text; put it in quotes"
    ),
    '{"mcpServers": {"a": {"command": "x", "env": {"A=B": "c"}}}}': (
        "1:47: mcpServers.a.env.…: the name of an environment variable may not be empty or hold `=`"
    ),
    '{"mcpServers": {"a": {"command": "x", "args": ["a\\u0000b"]}}}': (
        "1:48: mcpServers.a.args[0]: holds a NUL character"
    ),
    '{"mcpServers": {"a": {"command": "x\\ny"}}}': (
        "1:23: mcpServers.a.command: holds a control character such as a line break, expected one line of text"
    ),
    '{"mcpServers": {"a": {"command": "x", "enabled": "yes"}}}': (
        "1:39: mcpServers.a.enabled: found text, expected true or false"
    ),
    '{"mcpServers": {"a": {"command": "x", "disabled": 0}}}': (
        "1:39: mcpServers.a.disabled: found a number, expected true or false"
    ),
    '{"mcpServers": {"a": {"command": "x", "timeouts": 5}}}': (
        "1:39: mcpServers.a.timeouts: found a number, expected a mapping"
    ),
    '{"mcpServers": {"a": {"command": "x", "retry": {"tries": 2}}}}': (
        "1:49: mcpServers.a.retry.tries: unknown key; Known: attempts, max_wait_s, min_wait_s"
    ),
    '{"mcpServers": {"a": {"command": "x", "retry": {"min_wait_s": 2}}}}': (
        "1:39: mcpServers.a.retry: min_wait_s (2) is above max_wait_s (0.75)"
    ),
    '{"mcpServers": {"a": {"command": "x", "retry": {"attempts": 0}}}}': (
        "1:49: mcpServers.a.retry.attempts: found 0, expected at least 1"
    ),
    '{"mcpServers": {"a": {"command": "x", "replay": "sometimes"}}}': (
        "1:39: mcpServers.a.replay: found other text, expected 'hinted', 'always' or 'never'"
    ),
    '{"mcpServers": {"a": {"command": "x", "timeouts": {"call_s": "60"}}}}': (
        "1:52: mcpServers.a.timeouts.call_s: found text, expected a number"
    ),
    '{"mcpServers": {"a": {"command": "x", "timeouts": {"call_s": true}}}}': (
        "1:52: mcpServers.a.timeouts.call_s: found true or false, expected a number"
    ),
    '{"mcpServers": {"a": {"command": "x", "timeouts": {"call_s": 0}}}}': (
        "1:52: mcpServers.a.timeouts.call_s: found 0, expected a finite number greater than 0"
    ),
    '{"mcpServers": {"a": {"command": "x", "timeouts": {"call_s": Infinity}}}}': (
        "1:52: mcpServers.a.timeouts.call_s: found inf, expected a finite number greater than 0"
    ),
    '{"mcpServers": {"a": {"command": "x", "timeouts": {"call_s": 1e999}}}}': (
        "1:52: mcpServers.a.timeouts.call_s: found inf, expected a finite number greater than 0"
    ),
    '{"mcpServers": {"a": {"command": "x", "timeouts": {"tools": {"get_*": -1}}}}}': (
        '1:62: mcpServers.a.timeouts.tools["get_*"]: found -1, expected a finite number greater than 0'
    ),
    '{"mcpServers": {"a": {"command": "x", "max_message_bytes": 1.5}}}': (
        "1:39: mcpServers.a.max_message_bytes: found a number that is no whole one"
    ),
    '{"mcpServers": {"a": {"url": "ftp://h"}}}': (
        "1:23: mcpServers.a.url: expected an address such as `https://host:8080/mcp`: http or https, a host, no spaces"
    ),
    '{"mcpServers": {"a": {"transport": {"type": "http", "url": "http://"}}}}': (
        "1:53: mcpServers.a.transport.url: "
        "expected an address such as `https://host:8080/mcp`: http or https, a host, no spaces"
    ),
    '{"mcpServers": {"a": {"url": "http://h", "headers": {"Authorization: Bearer x": "y"}}}}': (
        "1:54: mcpServers.a.headers.…: "
        "a header's name may hold letters, digits and `-`, no spaces and no `:`; its value is another text"
    ),
    '{"mcpServers": {"a": {"url": "http://h", "headers": {"A": "b\\r\\nC: d"}}}}': (
        "1:54: mcpServers.a.headers.A: holds a control character such as a line break, expected one line of text"
    ),
    '{"mcpServers": {"a": {"url": "http://h", "auth": {"type": "bearer"}}}}': (
        "1:42: mcpServers.a.auth.token: required, but missing"
    ),
    '{"mcpServers": {"a": {"url": "http://h", "auth": {"type": "oauth", "token": "t"}}}}': (
        "1:51: mcpServers.a.auth.type: found other text, expected 'bearer', 'api_key', 'oauth_client_credentials'"
    ),
    '{"mcpServers": {"a": {"url": "http://h", "bearer_token": ""}}}': (
        "1:42: mcpServers.a.bearer_token: found empty text, expected some"
    ),
    '{"mcpServers": {"a": {"command": "x", "args": ["${A B}"]}}}': (
        "1:48: mcpServers.a.args[0]: found a `${` that begins no variable, expected `${NAME}`, `${NAME:-default}`, "
        "`${env:NAME}` or `${file:/path}`; write `$${` for a literal `${`"
    ),
    '{"mcpServers": {"a": {"command": "x", "masking": false}}}': (
        "1:39: mcpServers.a.masking: found true or false, expected a mapping"
    ),
    '{"mcpServers": {"a": {"command": "x", "masking": {"group": ["all"]}}}}': (
        "1:51: mcpServers.a.masking.group: unknown key; did you mean `groups`? Known: enabled, groups, patterns"
    ),
    '{"mcpServers": {"a": {"command": "x", "masking": {"groups": ["kubernets"]}}}}': (
        "1:62: mcpServers.a.masking.groups[0]: found neither a group nor a pattern of that name; "
        f"did you mean `kubernetes`? Known: {MASKING_NAMES}"
    ),
    '{"mcpServers": {"a": {"command": "x", "masking": {"patterns": ["ok", "a)"]}}}}': (
        "1:70: mcpServers.a.masking.patterns[1]: is no pattern of RE2's syntax: unexpected )"
    ),
    '{"mcpServers": {"a": {"command": "x", "masking": {"patterns": ["(?<=x)y"]}}}}': (
        "1:64: mcpServers.a.masking.patterns[0]: is no pattern of RE2's syntax: invalid perl operator "
        "(there is no look-around)"
    ),
    '{"mcpServers": {"a": {"command": "x", "masking": {"patterns": ["(a)\\\\1"]}}}}': (
        "1:64: mcpServers.a.masking.patterns[0]: is no pattern of RE2's syntax: invalid escape sequence "
        "(there are no back references)"
    ),
    '{"mcpServers": {"a": {"command": "x", "masking": {"patterns": ["(x{1000}){9}"]}}}}': (
        "1:64: mcpServers.a.masking.patterns[0]: is no pattern of RE2's syntax: invalid repetition size"
    ),
    '{"mcpServers": {"a": {"command": "x", "masking": {"patterns": ["(.{900}a){1}"]}}}}': (
        "1:64: mcpServers.a.masking.patterns[0]: is too large a pattern; "
        "are there repetitions such as `{1000}` within others?"
    ),
    '{"mcpServers": {"a": {"command": "x", "masking": {"patterns": ["x*"]}}}}': (
        "1:64: mcpServers.a.masking.patterns[0]: is a pattern that matches empty text, so everywhere"
    ),
    # Syntax
    '{"mcpServers": {"a" {}}}': "1:21: not valid JSON: Expecting ':' delimiter",
    '{"mcpServers": {},': "1:19: not valid JSON: Expecting property name enclosed in double quotes",
    '{"mcpServers": {"a": "x\ny"}}': "1:24: not valid JSON: Invalid control character at",
    '/* no end {"mcpServers": {}}': "1:1: not valid JSON: Expecting value",
    '{"mcpServers": {,}}': "1:17: not valid JSON: Expecting property name enclosed in double quotes",
    '{"$schema": "\\ud800", "mcpServers": {}}': ("1:14: an escape is half of a surrogate pair, which is no character"),
}


@pytest.mark.parametrize("text", JSON_ERRORS)
def test_an_error_in_json_says_where_what_was_found_and_what_is_expected(problems, text):
    assert problems(text) == [f"mcp.json:{JSON_ERRORS[text]}"]


YAML_ERRORS = {
    "- a\n": "1:1: found a list, expected a mapping with the key `mcpServers`",
    "null\n": "1:1: found nothing (null), expected a mapping with the key `mcpServers`",
    "mcpServers:\n  a:\n    command: x\n    tiemouts:\n      call_s: 5\n": (
        f"4:5: mcpServers.a.tiemouts: unknown key; did you mean `timeouts`? Known: {KEYS}"
    ),
    "mcpServers:\n  a:\n    command: x\n    enabled: yes\n": (
        "4:5: mcpServers.a.enabled: found text, expected true or false"
    ),
    "mcpServers:\n  a:\n    command: x\n    timeouts: {call_s: .inf}\n": (
        "4:16: mcpServers.a.timeouts.call_s: found text, expected a number"
    ),
    "mcpServers:\n  a:\n    command: x\n    env:\n      PORT: 80\n      # PIN: 1\n": (
        "5:7: mcpServers.a.env.PORT: found a number, expected text; put it in quotes"
    ),
    "mcpServers:\n  a:\n    command: x\n    command: y\n": "4:5: mcpServers.a.command: given twice, first in line 3",
    "mcpServers:\n  a:\n    command: !!python/object:os.system x\n": (
        "3:14: mcpServers.a.command: found a tag; put text that begins with `!` in quotes"
    ),
    "mcpServers:\n  a: {url: 'http://h', bearer_token: *hunter2}\n": (
        "2:38: not valid YAML: found undefined alias; put text that begins with `*` or `!` in quotes"
    ),
    "mcpServers:\n  a: {url: 'http://h', bearer_token: !hunter!x y}\n": (
        "2:38: not valid YAML: found undefined tag handle; put text that begins with `*` or `!` in quotes"
    ),
    "mcpServers:\n  a: b: c\n": "2:7: not valid YAML: mapping values are not allowed here",
    "mcpServers:\n\ta: {}\n": "2:1: not valid YAML: found character '\\t' that cannot start any token",
    "mcpServers: {}\n---\nmcpServers: {}\n": "2:1: not valid YAML: but found another document",
    "mcpServers: \a{}\n": "1:13: not valid YAML: found a control character",
    "mcpServers: &a {b: *a}\n": "1:1: nested too deeply; does an anchor hold an alias of itself?",
    "mcpServers: &a {<<: *a}\n": "1:1: nested too deeply; does an anchor hold an alias of itself?",
    "mcpServers: {a: {command: x, <<: 5}}\n": (
        '1:30: mcpServers.a["<<"]: expected an alias of a mapping, or a list of them'
    ),
    'mcpServers: {a: {command: "\\U99999999"}}\n': (
        "1:1: not valid YAML: an escape or a directive has a number out of range"
    ),
}


@pytest.mark.parametrize("text", YAML_ERRORS)
def test_an_error_in_yaml_says_where_what_was_found_and_what_is_expected(problems, text):
    assert problems(text, "mcp.yaml") == [f"mcp.yaml:{YAML_ERRORS[text]}"]


def test_a_go_template_that_yaml_reads_as_mappings_is_to_be_quoted(problems):
    first, second = problems("mcpServers:\n  a:\n    url: {{.URL}}\n", "mcp.yaml")
    assert first.startswith("mcp.yaml:3:5: mcpServers.a.url: found a mapping, expected text")
    assert second.startswith(
        "mcp.yaml:3:11: mcpServers.a.url: found a list or a mapping as a key; put text such as `{{"
    )


def test_all_problems_are_reported_in_the_order_of_the_file(problems):
    text = """{
      // a comment, for the line numbers
      "mcpServers": {
        "a": {"timeouts": {"call_s": -1, "lists": 3}, "command": "x", "command": "y"},
        "b": {"url": "nowhere", "args": {},  /* one more */
              "headers": {"X": 1}},
        "c": 5,
      },
      "more": true,
    }"""
    places = [line.split(": ")[:2] for line in problems(text)]
    assert places == [
        ["mcp.json:4:28", "mcpServers.a.timeouts.call_s"],
        ["mcp.json:4:42", "mcpServers.a.timeouts.lists"],
        ["mcp.json:4:71", "mcpServers.a.command"],
        ["mcp.json:5:15", "mcpServers.b.url"],
        ["mcp.json:5:33", "mcpServers.b.args"],
        ["mcp.json:6:27", "mcpServers.b.headers.X"],
        ["mcp.json:7:9", "mcpServers.c"],
        ["mcp.json:9:7", "more"],
    ]


def test_lines_are_found_in_json_that_is_indented_with_tabs_and_ends_lines_as_windows_does(problems):
    text = '{\n\t"mcpServers": {\n\t\t"a": {\n\t\t\t"command": "x",\n\t\t\t"cmd": "\u2028é\x7f"\n\t\t}\n\t}\n}'
    [line] = problems(text.replace("\n", "\r\n"))
    assert line.startswith("mcp.json:5:4: mcpServers.a.cmd: unknown key")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b" \n\t\n", 'is empty, expected at least {"mcpServers": {}}'),
        (b"", 'is empty, expected at least {"mcpServers": {}}'),
        (b'\xef\xbb\xbf{"mcpServers": {}}', "1:1: begins with a byte-order mark; save it as UTF-8 without one"),
        (b'{\n"mcpServers": {"\xe9": {}}}', "2: is not UTF-8; save it in that encoding"),
        ('{"mcpServers": {}}'.encode("utf-16"), "1: is not UTF-8; save it in that encoding"),
        (b" " * (1024 * 1024 + 1), "is larger than 1048576 bytes, the most that a configuration may have"),
    ],
)
@pytest.mark.parametrize("name", ["mcp.json", "mcp.yaml"])
def test_a_file_that_holds_no_text_of_use_is_an_error(problems, content, text, name):
    [line] = problems(content, name)
    assert line.removeprefix(name).lstrip(": ") == text


@pytest.mark.parametrize(("name", "text"), [("mcp.json", "// one\n/* two */"), ("mcp.yaml", "# one\n# two\n")])
def test_a_file_of_comments_is_an_empty_file(problems, name, text):
    assert problems(text, name)[0].startswith(f"{name}: is empty")


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path):
    for path, text in {
        tmp_path: "is a directory, expected a file",
        tmp_path / "gone.json": "there is no such file",
        tmp_path / "a\0b": "cannot be read: ",
        tmp_path / ("x" * 300): "cannot be read: File name too long",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert str(caught.value).startswith(f"{path}: {text}")


def test_a_file_that_may_not_be_read_is_an_error(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything
    try:
        with pytest.raises(ConfigError, match="this process may not read it"):
            load_config(path)
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"mcpServers": ' * 100_000,
        "[" * 400 + "]" * 400,
        "{a: " * 400 + "}" * 400,
        '{"mcpServers": {"a": ' + "9" * 5000 + "}}",
        '{"mcpServers": {"a": {"command": "x", "timeouts": {"call_s": ' + "9" * 400 + "}}}}",
        '"\\"' * 300_000,
        '{"a": ' + '"\\"' * 300_000,
        "/*" * 500_000,
        "{" + "," * 1_000_000,
        "[" + ", " * 500_000,
    ],
    ids=range(11),
)
@pytest.mark.parametrize("name", ["mcp.json", "mcp.yaml"])
@pytest.mark.timeout(60)
def test_a_pathological_file_is_an_error_in_little_time(problems, text, name):
    assert problems(text, name)


def test_aliases_cannot_blow_a_document_up(problems, load):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 20)
    )
    assert problems(bomb, "mcp.yaml") == [
        "mcp.yaml:1:1: aliases make this document too large; write out what is needed"
    ]
    merges = "mcpServers:\n  a0: &a0 {command: x}\n" + "".join(
        f"  a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}\n" for level in range(1, 20)
    )
    assert len(load(merges, "mcp.yaml").servers) == 20  # merging the same keys again adds none


def test_a_server_s_repr_shows_nothing_that_may_be_secret():
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


def test_models_are_frozen_and_pydantic_s_own_errors_show_no_input():
    server = ServerConfig(name="a", command="x")
    with pytest.raises(ValidationError):
        server.command = "y"  # type: ignore[misc]
    with pytest.raises(ValidationError) as caught:
        ServerConfig.model_validate({"name": "a", "command": "x", "env": {"A": [SECRET]}, SECRET[:3]: SECRET})
    assert SECRET not in str(caught.value)


# Properties

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)
SECONDS = st.floats(0.001, 1e9) | st.integers(1, 10**6)
LINES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12).map(
    lambda text: text.replace("${", "$ {")
)
COMMON_KEYS = {
    "description": LINES,
    "enabled": st.booleans(),
    "required": st.booleans(),
    "max_message_bytes": st.integers(1, 2**40),
    "instructions": TEXTS,
    "masking": st.fixed_dictionaries(
        {},
        optional={
            "enabled": st.booleans(),
            "groups": st.lists(st.sampled_from(["basic", "all", "email"]), max_size=3),
            "patterns": st.lists(st.sampled_from(["ACME-([0-9]+)", "[A-Z]{9}"]), max_size=3),
        },
    ),
    "timeouts": st.fixed_dictionaries(
        {}, optional={"connect_s": SECONDS, "call_s": SECONDS, "tools": st.dictionaries(LINES, SECONDS, max_size=3)}
    ),
}
ENTRIES = st.fixed_dictionaries(
    {"command": LINES},
    optional={
        **COMMON_KEYS,
        "args": st.lists(LINES, max_size=3),
        "env": st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]*", fullmatch=True), LINES, max_size=3),
        "cwd": LINES,
    },
) | st.fixed_dictionaries(
    {"url": st.sampled_from(["https://h/mcp", "http://[::1]:80", "${URL}", "https://u:p@h/?q=//x"])},
    optional={
        **COMMON_KEYS,
        "headers": st.dictionaries(st.from_regex(r"X-[A-Za-z-]+", fullmatch=True), LINES, max_size=3),
        "verify_ssl": st.booleans(),
        "auth": st.fixed_dictionaries({"type": st.just("bearer"), "token": LINES}),
    },
)
CONFIGS = st.fixed_dictionaries(
    {"mcpServers": st.dictionaries(st.from_regex(r"[a-z]([a-z-]*[a-z])?", fullmatch=True), ENTRIES, max_size=3)}
)
FRAGMENTS = st.lists(
    st.sampled_from(
        [
            *"{}[]:,&*!|>%@`\"'#-?/\\ \n\t~<0",
            *("mcpServers", "mcp", "servers", "name", "command", "url", "transport", "timeouts", "auth", "env"),
            *(
                "null",
                "true",
                "1e999",
                "NaN",
                "&a ",
                "*a",
                "<<",
                "!!int ",
                "---\n",
                ": ",
                "\n  ",
                "//",
                "/*",
                "*/",
                "${",
            ),
            *('"mcpServers": {', '"a": {"command": "x"}', '"\\ud800"', '"\\U99999999"', "%YAML 1.2\n"),
        ]
    )
    | TEXTS,
    max_size=40,
).map("".join)


def load_error(path: Path) -> ConfigError | None:
    try:
        load_config(path)
    except ConfigError as error:
        return error
    return None


@given(content=st.binary(max_size=60) | TEXTS.map(str.encode) | FRAGMENTS.map(str.encode))
@example(content=b"%YAML 1." + b"9" * 5000 + b"\n---\na")
@example(content=b"{? [a]: b}")
@example(content=b'{"a\xe2\x80\xa8b": 1, "a\xe2\x80\xa8b": 2}')
@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
def test_loading_arbitrary_bytes_raises_nothing_but_config_errors(directory, name, content):
    path = directory / name
    path.write_bytes(content)
    error = load_error(path)
    assert error is None or all(line.startswith(str(path)) for line in str(error).split("\n"))


@given(data=st.data())
@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
def test_loading_a_configuration_with_arbitrary_values_in_it_raises_nothing_but_config_errors(directory, name, data):
    config = data.draw(CONFIGS)
    break_somewhere(config, data, JSON_VALUES)
    path = directory / name
    path.write_text(json.dumps(config, ensure_ascii=data.draw(st.booleans())), "utf-8")
    error = load_error(path)
    assert error is None or all(line.startswith(str(path)) for line in str(error).split("\n"))


def break_somewhere(value: Any, data: st.DataObject, replacements: st.SearchStrategy[Any]) -> None:
    """Put something in place of one of the values within."""
    while isinstance(value, dict | list) and value:
        key = data.draw(st.sampled_from(range(len(value)) if isinstance(value, list) else sorted(value)))
        if not isinstance(value[key], dict | list) or data.draw(st.booleans()):
            value[key] = data.draw(replacements)
            return
        value = value[key]


def shown(value: Any) -> Any:
    """A dumped value, secrets included."""
    if isinstance(value, dict):
        return {key: shown(each) for key, each in value.items()}
    return value.get_secret_value() if isinstance(value, SecretStr) else value


@given(config=CONFIGS)
def test_a_valid_configuration_says_the_same_in_json_yaml_and_when_dumped_again(directory, config):
    (directory / "a.json").write_text(json.dumps(config))
    loaded = load_config(directory / "a.json")
    assert {
        name: shown(server.model_dump(exclude_unset=True, exclude={"name", "transport"}))
        for name, server in loaded.servers.items()
    } == config["mcpServers"]

    (directory / "a.yaml").write_text(yaml.safe_dump(config, default_style='"'), "utf-8")
    assert load_config(directory / "a.yaml") == loaded

    dumped = {
        "mcpServers": {name: shown(server.model_dump(exclude={"name"})) for name, server in loaded.servers.items()}
    }
    (directory / "b.json").write_text(json.dumps(dumped))
    assert load_config(directory / "b.json") == loaded


GAPS = st.sampled_from(["", " ", "\n", "\t", '// a " , }\n', '/* " , ] // */', "/**/", "// /*\r\n"])


def spell(value: Any, data: st.DataObject) -> str:
    """A value as JSON with comments and trailing commas."""

    def gap() -> str:
        return data.draw(GAPS)

    if isinstance(value, dict):
        items = [f"{gap()}{json.dumps(key)}{gap()}:{spell(each, data)}" for key, each in value.items()]
        brackets = "{}"
    elif isinstance(value, list):
        items = [spell(each, data) for each in value]
        brackets = "[]"
    else:
        return gap() + json.dumps(value, ensure_ascii=False) + gap()
    comma = "," if items and data.draw(st.booleans()) else ""
    return f"{gap()}{brackets[0]}{','.join(items)}{gap()}{comma}{gap()}{brackets[1]}{gap()}"


@given(value=st.dictionaries(TEXTS, JSON_VALUES, max_size=3), data=st.data())
@example(value={"a": "https://x", "b": "/* x */", "c": '",]', "d": "\\"}, data=None)
def test_comments_and_trailing_commas_never_change_a_value(directory, value, data):
    path = directory / "comments.json"
    path.write_text(json.dumps(value) if data is None else spell(value, data), "utf-8", newline="")
    assert read_config_file(path).data == value


@given(config=CONFIGS.filter(lambda config: config["mcpServers"]), data=st.data())
@pytest.mark.parametrize("name", ["secret.json", "secret.yaml"])
def test_no_value_that_could_be_secret_ever_appears_in_an_error(directory, name, config, data):
    secrets = st.sampled_from(
        [
            SECRET,
            [SECRET],
            {"x": SECRET},
            f"Bearer {SECRET}",
            f"${{{SECRET}",
            f"\0{SECRET}",
            {"type": SECRET, "token": 5},
        ]
    )
    entry = data.draw(st.sampled_from(sorted(config["mcpServers"].values(), key=str)))
    for key in data.draw(
        st.sets(st.sampled_from(["env", "headers", "auth", "args", "url", "bearer_token", "cwd", "ca_file"]))
    ):
        entry[key] = copy.deepcopy(entry.get(key, {"A": SECRET}))
        if not isinstance(entry[key], dict | list) or data.draw(st.booleans()):
            entry[key] = data.draw(secrets)
        else:
            break_somewhere(entry[key], data, secrets)
    path = directory / name
    path.write_text(json.dumps(config))
    if (error := load_error(path)) is not None:
        assert SECRET not in str(error)
        assert error.__cause__ is None
        assert error.__context__ is None or error.__suppress_context__


# The schema

GOOD = [
    {"mcpServers": {}},
    {"mcpServers": {"a": {"type": "sse", "url": "https://h/sse", "headers": {"A": "b"}, "verify_ssl": False}}},
    {"$schema": "x", "mcpServers": {"a b": {"command": "x", "args": ["y"], "env": {"A": "${B}"}, "disabled": True}}},
    {"mcpServers": {"a": {"type": "streamable-http", "url": "https://h", "headers": {"A": "b"}, "bearer_token": "t"}}},
    {
        "mcpServers": {
            "a": {"url": "${URL}", "auth": {"type": "bearer", "token": "t"}, "timeouts": {"tools": {"a*": 0.5}}}
        }
    },
]
BAD = [
    [],
    {},
    {"servers": {}},
    {"mcpServers": []},
    {"mcpServers": {"a": {}}},
    {"mcpServers": {"a": {"command": "x", "url": "http://h"}}},
    {"mcpServers": {"a": {"command": "x", "name": "a"}}},
    {"mcpServers": {"a": {"command": "x", "timeout": 5}}},
    {"mcpServers": {"a": {"command": "x", "args": "y"}}},
    {"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}},
    {"mcpServers": {"a": {"command": "x", "timeouts": {"call_s": 0}}}},
    {"mcpServers": {"a": {"command": "x", "timeouts": {"call": 5}}}},
    {"mcpServers": {"a": {"command": "x", "max_message_bytes": 0}}},
    {"mcpServers": {"a": {"type": "SSE", "url": "http://h"}}},
    {"mcpServers": {"a": {"url": "http://h", "auth": {"type": "bearer"}}}},
    {"mcpServers": {"a": {"command": "x", "masking": False}}},
    {"mcpServers": {"a": {"command": "x", "masking": {"groups": "all"}}}},
    {"mcpServers": {"a": {"command": "x", "masking": {"pattern": ["x"]}}}},
]


@pytest.mark.parametrize("value", GOOD)
def test_what_the_schema_accepts_loads(load, value):
    jsonschema.Draft202012Validator(config_schema()).validate(value)
    load(json.dumps(value))


@pytest.mark.parametrize("value", BAD)
def test_what_the_schema_refuses_does_not_load(problems, value):
    assert not jsonschema.Draft202012Validator(config_schema()).is_valid(value)
    assert problems(json.dumps(value))


@given(config=CONFIGS)
def test_the_schema_accepts_every_valid_configuration(config):
    jsonschema.Draft202012Validator(config_schema()).validate(config)


def test_the_schema_is_one_and_describes_every_key():
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    properties = schema["$defs"]["ServerConfig"]["properties"]
    assert set(properties) == set(KEYS.split(", "))
    assert all(each["description"] for each in properties.values())


# Cost


def test_importing_and_loading_json_imports_neither_yaml_nor_the_heavy_libraries(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text('// c\n{"mcpServers": {"a": {"url": "${U}"}},}')
    code = (
        "import sys; from tarsy_tasks.config import load_config, resolve_variables;"
        "server = load_config(sys.argv[1]).servers['a']; resolve_variables(server, {'U': 'http://h'});"
        "heavy = ('yaml', 'jsonschema_rs', 'mcp', 'celery', 'pydantic_settings');"
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

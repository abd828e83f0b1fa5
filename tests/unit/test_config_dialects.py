"""The forms of a configuration file: roots, JSON with comments, YAML with the types of JSON."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tarsy_tasks.config import Timeouts, describe_unused, load_config
from tarsy_tasks.config.file import read_config_file
from tests.unit.config_strategies import JSON_VALUES, TEXTS


def test_no_servers_are_a_valid_configuration(load_text):
    assert load_text('{"$schema": "https://x/schema.json", "mcpServers": {}}').servers == {}


LIST_FORM = """
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


MAPPING_FORM = """
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


@pytest.mark.parametrize("text", [LIST_FORM, MAPPING_FORM])
def test_the_forms_with_mcp_servers_equal_the_common_form(load_text, text):
    assert load_text(text, "mcp.yaml") == load_text(COMMON_FORM, "mcp.yml")


def test_a_file_may_have_both_roots(load_text):
    config = load_text('{"mcpServers": {"a": {"command": "x"}}, "mcp": {"servers": [{"name": "b", "command": "x"}]}}')
    assert list(config.servers) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        (".gemini/settings.json", "$TOKEN", "${TOKEN}"),
        ("gemini-extension.json", "$TOKEN", "${TOKEN}"),
        ("librechat.yaml", "{{TOKEN}}", "${TOKEN}"),
        ("gemini/mcp.json", "$TOKEN", "$TOKEN"),
        ("mcp.json", "${{ secrets.TOKEN }}", "${TOKEN}"),
        ("mcp.json", "${config:a.b-c}", "${CONFIG_A_B_C}"),
        ("mcp.json", "$${config:a.b}", "$${config:a.b}"),
        ("mcp.json", "x=$COPILOT_MCP_TOKEN", "x=${COPILOT_MCP_TOKEN}"),
        ("mcp.json", "$$COPILOT_MCP_TOKEN", "$$COPILOT_MCP_TOKEN"),
    ],
)
def test_a_client_is_also_known_by_the_name_of_its_file(load_text, tmp_path, name, text, read):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    data = {"mcpServers": {"a": {"command": "x", "env": {"A": text}}}}
    assert load_text(json.dumps(data), name).servers["a"].env == {"A": read}


def test_a_file_that_only_one_client_has_may_have_any_other_keys(load_text, config_problems):
    text = '{"mcpServers": {"a": {"command": "x"}}, "darkMode": "dark"}'
    assert list(load_text(text, "claude_desktop_config.json").servers) == ["a"]
    assert "darkMode: unknown key" in config_problems(text)[0]
    close = text.replace("darkMode", "interceptor")
    assert "did you mean `interceptors`?" in config_problems(close, "claude_desktop_config.json")[0]


def test_inputs_may_be_beside_any_servers(load_text):
    data = {"inputs": [{"id": "k", "default": "d"}], "mcpServers": {"a": {"command": "x", "args": ["${input:k}"]}}}
    assert load_text(json.dumps(data)).servers["a"].args == ["${INPUT_K:-d}"]


def test_the_default_of_a_reference_says_the_transport_too(load_text):
    data = {"mcpServers": {"a": {"url": "${URL:-http://h/sse}"}, "b": {"url": "${URL:-http://h/mcp}"}}}
    assert [each.transport for each in load_text(json.dumps(data)).servers.values()] == ["sse", "http"]


def test_a_client_is_also_known_by_its_schema(load_text):
    entry = {"type": "remote", "url": "https://h/mcp", "headers": {"Authorization": "Bearer {env:TOKEN}"}}
    data = {"$schema": "https://opencode.ai/config.json", "mcp": {"servers": {"a": entry}}}
    assert load_text(json.dumps(data)).servers["a"].headers == {"Authorization": "Bearer ${TOKEN}"}


@pytest.mark.parametrize(
    ("beside", "enabled"),
    [
        ({"mcp": {"allowed": ["a"]}}, ["a"]),
        ({"mcp": {"allowed": [], "excluded": ["a"]}}, ["b"]),
        ({"mcp": {"allowed": ["a", "b"], "excluded": ["b"]}}, ["a"]),
        ({"allowMCPServers": ["b"]}, ["b"]),
        ({"excludeMCPServers": ["b"], "theme": "x"}, ["a"]),
        ({"mcp": {"allowed": "a"}}, ["a", "b"]),
    ],
)
def test_lists_beside_the_servers_switch_servers_off(load_text, beside, enabled):
    servers = {"a": {"command": "x"}, "b": {"command": "x"}}
    assert list(load_text(json.dumps({"mcpServers": servers, **beside})).enabled_servers) == enabled


def test_a_project_switches_off_only_its_own_servers(load_text):
    projects = {
        "/p": {"mcpServers": {"a": {"command": "x"}}, "disabledMcpServers": ["b"]},
        "/q": {"mcpServers": {"a": {"command": "y"}, "b": {"command": "x"}}, "disabledMcpServers": ["a"]},
    }
    assert list(load_text(json.dumps({"projects": projects})).enabled_servers) == ["a", "b"]


def test_settings_are_defaults_of_the_servers(load_text):
    data = {"mcp": {"settings": {"default_timeout": "40s"}, "servers": [{"name": "a", "command": "x"}]}}
    assert load_text(json.dumps(data)).servers["a"].timeouts == Timeouts(call_s=40)


def test_a_wrong_default_is_reported_once(config_problems):
    servers = [{"name": name, "command": "x"} for name in "ab"]
    text = json.dumps({"mcp": {"settings": {"masking": True}, "servers": servers}})
    assert len(config_problems(text)) == 1


def test_json_may_have_comments_and_trailing_commas(load_text):
    config = load_text(
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
    assert load_text('{"mcpServers": {}} // to the end').servers == {}


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
def test_comments_and_trailing_commas_never_change_a_value(config_directory, value, data):
    path = config_directory / "comments.json"
    path.write_text(json.dumps(value) if data is None else spell(value, data), "utf-8", newline="")
    assert read_config_file(path).data == value


def test_yaml_has_the_types_of_json_only(load_text):
    args = (
        "[2024-01-01, 12:30, yes, on, No, 0o7, 007, 1_000, 0x1f, .5, +1, .nan, 1e, 2024-01-01T00:00:00Z, True, '5', <<]"
    )
    server = load_text(f"mcpServers: {{a: {{command: y, args: {args}, enabled: false}}}}", "mcp.yaml").servers["a"]
    assert (server.command, server.enabled) == ("y", False)
    words = "2024-01-01 12:30 yes on No 0o7 007 1_000 0x1f .5 +1 .nan 1e 2024-01-01T00:00:00Z True 5 <<"
    assert server.args == words.split()


def test_keys_in_yaml_are_always_strings(load_text):
    text = "mcpServers: {1: {command: a}, yes: {command: b}, null: {command: c, env: {2.0: x}}}"
    config = load_text(text, "mcp.yaml")
    assert list(config.servers) == ["1", "yes", "null"]
    assert config.servers["null"].env == {"2.0": "x"}


def test_yaml_anchors_and_merge_keys_work(load_text):
    config = load_text(
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


def test_entries_that_share_an_anchor_do_not_change_each_other(load_text):
    config = load_text(
        """
        mcp:
          servers:
            - {name: a, timeouts: &t {list_s: 1}, transport: {url: "http://a", timeout: 5}}
            - {name: b, timeouts: *t, transport: {url: "http://b", timeout: 6}}
        """,
        "mcp.yaml",
    )
    assert [server.timeouts.call_s for server in config.servers.values()] == [5, 6]


def test_a_relative_file_of_variables_is_in_the_workspace(load_text, tmp_path):
    entries = {"a": {"command": "x", "envFile": ".env"}, "b": {"url": "http://h/mcp", "envFile": ".env"}}
    config = load_text(json.dumps({"servers": entries}))
    assert [server.variables_file for server in config.servers.values()] == [f"{tmp_path}/.env", None]


@pytest.mark.parametrize("entry", [{"url": "ws://h"}, {"transport": {"type": "ws", "url": "WSS://h/mcp"}}])
def test_a_server_over_websocket_is_left_out_with_a_line(tmp_path, entry):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"live": entry, "a": {"command": "x"}}}))
    assert list(load_config(path).servers) == ["a"]
    assert describe_unused(path) == [
        f"{path}: left out, because they use WebSocket, which workers do not support: live"
    ]

"""The errors of a configuration: file, place, what was found, what is valid. The whole text, because people read it."""

import re
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data" / "config_problems.txt"

KEYS = (
    "agent_credentials, approval, args, auth, bearer_token, bearer_token_file, ca_file, cache, command, cwd, "
    "description, disabled, elicitation, enabled, env, env_file, error_budget, headers, headers_file, "
    "idempotent_tools, idle_stop_s, inherit_env, instructions, isolated, masking, max_concurrency, "
    "max_message_bytes, native, pin, replay, required, result_limit, result_limits, retry, sandbox, session, "
    "start, summarization, timeouts, transport, type, url, url_file, variables_file, verify_ssl"
)


NAMES = {
    "SERVER_KEYS": KEYS,
    "TIMEOUT_KEYS": "call_s, connect_s, list_s, progress_extends, progress_limit_s, recreate_s, task_s, tools",
    "TRANSPORTS": "http, local, remote, sse, stdio, streamable, streamable-http, streamableHttp, streamable_http",
    "MASKING_NAMES": (
        "all, api_key, aws_access_key, aws_secret_key, base64_secret, base64_short, basic, certificate, "
        "certificate_authority_data, cloud, email, github_token, kubernetes, kubernetes_secret, password, private_key, "
        "secret_key, secrets, security, slack_token, ssh_key, token"
    ),
}


def read_rows(kind):
    """The texts under the headings of a kind, each with its error."""
    sections = re.findall(rf"^# {kind}.*\n\n((?:(?!# ).*\n?)*)", DATA.read_text(encoding="utf-8"), re.MULTILINE)
    rows = re.findall(r"(?s)(.+?)\n=> (.*?)\n(?:\n|\Z)", "".join(sections))
    return [(text, re.sub(r"[A-Z]+_?[A-Z]+$", lambda name: NAMES.get(name[0], name[0]), error)) for text, error in rows]


def test_all_rows_are_read():
    rows = [
        row
        for kind in ("Entries", "Whole files in JSON", "Whole files in TOML", "Whole files in YAML")
        for row in read_rows(kind)
    ]
    assert len(rows) == DATA.read_text(encoding="utf-8").count("\n=> ")


@pytest.mark.parametrize(("entry", "error"), read_rows("Entries"))
def test_a_problem_of_an_entry_has_its_place_and_correction(config_problems, entry, error):
    assert config_problems(f'{{"mcpServers": {{"a": {entry}}}}}') == [f"mcp.json:{error}"]


@pytest.mark.parametrize(("text", "error"), read_rows("Whole files in JSON"))
def test_a_problem_in_json_has_its_place_and_correction(config_problems, text, error):
    assert config_problems(text) == [f"mcp.json:{error}"]


@pytest.mark.parametrize(("text", "error"), read_rows("Whole files in TOML"))
def test_a_problem_in_toml_has_its_place_and_correction(config_problems, text, error):
    assert config_problems(text, "config.toml") == [f"config.toml:{error}"]


@pytest.mark.parametrize(
    ("text", "error"),
    [*read_rows("Whole files in YAML"), ("mcpServers: \a{}", "1:13: not valid YAML: found a control character")],
)
def test_a_problem_in_yaml_has_its_place_and_correction(config_problems, text, error):
    assert config_problems(f"{text}\n", "mcp.yaml") == [f"mcp.yaml:{error}"]


def test_an_unquoted_go_template_in_yaml_is_an_error(config_problems):
    first, second = config_problems("mcpServers:\n  a:\n    url: {{.URL}}\n", "mcp.yaml")
    assert first.startswith("mcp.yaml:3:5: mcpServers.a.url: found a mapping, expected a string")
    assert second.startswith(
        "mcp.yaml:3:11: mcpServers.a.url: found a list or a mapping as a key; put text such as `{{"
    )


def test_all_problems_are_reported_in_the_order_of_the_file(config_problems):
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
    places = [line.split(": ")[:2] for line in config_problems(text)]
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


def test_lines_are_found_in_json_with_tabs_and_windows_line_ends(config_problems):
    text = '{\n\t"mcpServers": {\n\t\t"a": {\n\t\t\t"command": "x",\n\t\t\t"cmdd": "\u2028é\x7f"\n\t\t}\n\t}\n}'
    [line] = config_problems(text.replace("\n", "\r\n"))
    assert line.startswith("mcp.json:5:4: mcpServers.a.cmdd: unknown key")

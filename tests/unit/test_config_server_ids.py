"""The id of a server: which names are ids, and the alias of one that is not."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.config.server_ids import build_server_id


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
def test_a_name_that_is_not_an_id_gets_an_alias(load_text, name, server_id):
    config = load_text(json.dumps({"mcpServers": {name: {"command": "x"}}}))
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
def test_a_server_needs_a_valid_id(name):
    with pytest.raises(ValidationError):
        ServerConfig(name=name, command="x")

"""Properties of loading any configuration: its errors, its forms, and the secrets in it."""

import copy
import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr

from tarsy_tasks.config import load_config
from tests.unit.config_strategies import CONFIGS, FRAGMENTS, JSON_VALUES, TEXTS, break_somewhere, load_error

SECRET = "hunter2-c0ffee"


@given(content=st.binary(max_size=60) | TEXTS.map(str.encode) | FRAGMENTS.map(str.encode))
@example(content=b"%YAML 1." + b"9" * 5000 + b"\n---\na")
@example(content=b"{? [a]: b}")
@example(content=b'{"a\xe2\x80\xa8b": 1, "a\xe2\x80\xa8b": 2}')
@pytest.mark.parametrize("name", ["x.json", "x.yaml", "x.toml"])
def test_arbitrary_bytes_raise_only_config_errors(config_directory, name, content):
    path = config_directory / name
    path.write_bytes(content)
    error = load_error(path)
    assert error is None or all(line.startswith(str(path)) for line in str(error).split("\n"))


@given(data=st.data())
@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
def test_arbitrary_values_raise_only_config_errors(config_directory, name, data):
    config = data.draw(CONFIGS)
    break_somewhere(config, data, JSON_VALUES)
    path = config_directory / name
    path.write_text(json.dumps(config, ensure_ascii=data.draw(st.booleans())), "utf-8")
    error = load_error(path)
    assert error is None or all(line.startswith(str(path)) for line in str(error).split("\n"))


def shown(value: Any) -> Any:
    """A dumped value, secrets included."""
    if isinstance(value, dict):
        return {key: shown(each) for key, each in value.items()}
    return value.get_secret_value() if isinstance(value, SecretStr) else value


@given(config=CONFIGS)
def test_json_yaml_and_a_dumped_configuration_are_equal(config_directory, config):
    (config_directory / "a.json").write_text(json.dumps(config))
    loaded = load_config(config_directory / "a.json")
    assert {
        name: shown(server.model_dump(exclude_unset=True, exclude={"name", "transport"}))
        for name, server in loaded.servers.items()
    } == config["mcpServers"]

    (config_directory / "a.yaml").write_text(yaml.safe_dump(config, default_style='"'), "utf-8")
    assert load_config(config_directory / "a.yaml") == loaded

    dumped = {
        "mcpServers": {name: shown(server.model_dump(exclude={"name"})) for name, server in loaded.servers.items()}
    }
    (config_directory / "b.json").write_text(json.dumps(dumped))
    assert load_config(config_directory / "b.json") == loaded


@given(config=CONFIGS.filter(lambda config: config["mcpServers"]), data=st.data())
@pytest.mark.parametrize("name", ["secret.json", "secret.yaml"])
def test_no_possible_secret_appears_in_an_error(config_directory, name, config, data):
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
    path = config_directory / name
    path.write_text(json.dumps(config))
    if (error := load_error(path)) is not None:
        assert SECRET not in str(error)
        assert error.__cause__ is None
        assert error.__context__ is None or error.__suppress_context__

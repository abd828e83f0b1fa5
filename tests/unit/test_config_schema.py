"""The JSON Schema of a configuration file agrees with loading."""

import json

import jsonschema
import pytest
from hypothesis import given

from tarsy_tasks.config import config_schema
from tests.unit.config_strategies import CONFIGS
from tests.unit.test_config_problems import KEYS

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
    {"server": {}},
    {"mcpServers": 5},
    {"mcpServers": {"a": {}}},
    {"mcpServers": {"a": {"command": "x", "url": "http://h"}}},
    {"mcpServers": {"a": {"command": "x", "names": "a"}}},
    {"mcpServers": {"a": {"command": "x", "timeout": "5"}}},
    {"mcpServers": {"a": {"command": "x", "args": "y"}}},
    {"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}},
    {"mcpServers": {"a": {"command": "x", "timeouts": {"call_s": 0}}}},
    {"mcpServers": {"a": {"command": "x", "timeouts": {"call": 5}}}},
    {"mcpServers": {"a": {"command": "x", "max_message_bytes": 0}}},
    {"mcpServers": {"a": {"type": "SSEE", "url": "http://h"}}},
    {"mcpServers": {"a": {"url": "http://h", "auth": {"type": "bearer"}}}},
    {"mcpServers": {"a": {"command": "x", "masking": False}}},
    {"mcpServers": {"a": {"command": "x", "masking": {"groups": "all"}}}},
    {"mcpServers": {"a": {"command": "x", "masking": {"pattern": ["x"]}}}},
]


@pytest.mark.parametrize("value", GOOD)
def test_what_the_schema_accepts_loads(load_text, value):
    jsonschema.Draft202012Validator(config_schema()).validate(value)
    load_text(json.dumps(value))


@pytest.mark.parametrize("value", BAD)
def test_what_the_schema_rejects_does_not_load(config_problems, value):
    assert not jsonschema.Draft202012Validator(config_schema()).is_valid(value)
    assert config_problems(json.dumps(value))


@given(config=CONFIGS)
def test_the_schema_accepts_every_valid_configuration(config):
    jsonschema.Draft202012Validator(config_schema()).validate(config)


def test_the_schema_is_one_and_describes_every_key():
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    properties = schema["$defs"]["ServerConfig"]["properties"]
    assert set(properties) == set(KEYS.split(", "))
    assert all(each["description"] for each in properties.values())

"""Configurations, valid and broken, for property tests."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tarsy_tasks.config import load_config
from tarsy_tasks.errors import ConfigError

__all__ = ["CONFIGS", "FRAGMENTS", "JSON_VALUES", "TEXTS", "break_somewhere", "load_error"]

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
    "cache": st.fixed_dictionaries({}, optional={"resources": st.floats(0.001, 86400)}),
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
    {"command": LINES.filter(lambda line: " " not in line)},
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
    """The error of loading a file, if there is one."""
    try:
        load_config(path)
    except ConfigError as error:
        return error
    return None


def break_somewhere(value: Any, data: st.DataObject, replacements: st.SearchStrategy[Any]) -> None:
    """Put something in place of one of the values within."""
    while isinstance(value, dict | list) and value:
        key = data.draw(st.sampled_from(range(len(value)) if isinstance(value, list) else sorted(value)))
        if not isinstance(value[key], dict | list) or data.draw(st.booleans()):
            value[key] = data.draw(replacements)
            return
        value = value[key]

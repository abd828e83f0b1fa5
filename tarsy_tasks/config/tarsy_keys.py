"""What TARSy's configuration says of masking, and `mcp.settings`: defaults for all servers of a file."""

import re
from collections.abc import Iterable, Iterator

from pydantic import JsonValue

from tarsy_tasks.config.key_rules import Found, Rule, Taken, Unused, at, inside, read_duration
from tarsy_tasks.config.own_keys import OWN_KEYS
from tarsy_tasks.config.problems import KeyPath, Problem, describe_kind, unknown_key
from tarsy_tasks.config.servers import Retry, Timeouts

__all__ = ["data_masking", "read_settings"]

_MASKING_KEYS = ("enabled", "pattern_groups", "patterns", "custom_patterns")


def data_masking(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """Groups and built-in patterns, whose names are one list here, and patterns of the user."""
    if not isinstance(value, dict):
        yield Problem(where, f"found {describe_kind(value)}, expected a mapping")
        return
    yield from (unknown_key((*where, key), _MASKING_KEYS) for key in value if key not in _MASKING_KEYS)
    if value.get("enabled") is not None:
        yield Taken(("masking", "enabled"), value["enabled"], (*where, "enabled"))
    names: list[JsonValue] = []
    for key in ("pattern_groups", "patterns"):
        match value.get(key):
            case None:
                pass
            case list() as listed:
                names += listed
            case wrong:
                yield Problem((*where, key), f"found {describe_kind(wrong)}, expected a list of names")
    if names:
        yield Taken(("masking", "groups"), names, (*where, "pattern_groups"))
    patterns: list[JsonValue] = []
    custom = value.get("custom_patterns") or []
    for index, each in enumerate(custom if isinstance(custom, list) else [custom]):
        if not isinstance(each, dict) or not isinstance(each.get("pattern"), str):
            yield Problem((*where, "custom_patterns", index), "expected a mapping with a `pattern`")
        elif each.get("enabled") is not False:
            patterns.append(each["pattern"])
    if patterns:
        yield Taken(("masking", "patterns"), patterns, (*where, "custom_patterns"))


_PLACES = {
    **dict.fromkeys(
        ("timeout", "call_timeout", "tool_timeout", "tool_call_timeout", "operation_timeout", "request_timeout"),
        ("timeouts", "call_s"),
    ),
    **dict.fromkeys(
        ("connect_timeout", "connection_timeout", "init_timeout", "startup_timeout"), ("timeouts", "connect_s")
    ),
    **dict.fromkeys(("list_timeout", "list_tools_timeout"), ("timeouts", "list_s")),
    **dict.fromkeys(("recreate_timeout", "reinit_timeout", "reconnect_timeout"), ("timeouts", "recreate_s")),
    **dict.fromkeys(("retry_backoff_min", "retry_min_wait"), ("retry", "min_wait_s")),
    **dict.fromkeys(("retry_backoff_max", "retry_max_wait"), ("retry", "max_wait_s")),
}
"""Durations, by their names without a unit."""
_COUNTS = {
    **dict.fromkeys(("max_retries", "retries", "retry_count"), (("retry", "attempts"), 1)),
    **dict.fromkeys(("max_attempts", "retry_attempts"), (("retry", "attempts"), 0)),
    **dict.fromkeys(("max_concurrent_calls", "concurrency"), (("max_concurrency",), 0)),
}
"""Numbers, and what to add to them."""
_OF_ONE_SERVER = frozenset(
    {"command", "args", "url", "url_file", "transport", "type", "cwd", "auth", "bearer_token", "bearer_token_file"}
)
_STARTUP = re.compile(r"startup(?:_mode)?|strict(?:_startup)?")
_OF_THE_DEPLOYMENT = re.compile(r"health_.*|log_level|metrics.*|.*_interval")
_UNIT = re.compile(r"_(?:(?P<ms>ms|millis|milliseconds)|s|sec|secs|seconds)\Z")


def read_settings(value: JsonValue, where: KeyPath) -> Iterator[Found]:
    """`mcp.settings`: keys of an entry, and durations and counts under the names that they have elsewhere."""
    if not isinstance(value, dict):
        yield Problem(where, f"found {describe_kind(value)}, expected a mapping of keys that each server may have")
        return
    for key, each in value.items():
        if each is not None:
            yield from _read_setting(key, each, (*where, key))


def _read_setting(key: str, value: JsonValue, where: KeyPath) -> Iterable[Found]:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().removeprefix("default_")
    unit = _UNIT.search(name)
    bare = name[: unit.start()] if unit else name
    if bare in _PLACES:
        return [Taken(_PLACES[bare], read_duration(value, _unit_s(unit)), where)]
    if name in _COUNTS:
        place, more = _COUNTS[name]
        return [Taken(place, value + more if isinstance(value, int) else value, where)]
    if name in ("data_masking", "mask"):
        return data_masking(value, where)
    if name in ("timeouts", "retry") and isinstance(value, dict):
        fields = (Timeouts if name == "timeouts" else Retry).model_fields
        rules: dict[str, Rule] = {field: at(name, field) for field in fields}
        return inside(rules)(value, where)
    if name in OWN_KEYS and name not in _OF_ONE_SERVER:
        return OWN_KEYS[name](value, where)
    if _STARTUP.fullmatch(name):
        return [Unused(where, "see the variable TARSY_STARTUP")]
    if _OF_THE_DEPLOYMENT.fullmatch(name):
        return [Unused(where)]
    return [unknown_key(where, [*(OWN_KEYS.keys() - _OF_ONE_SERVER), *_PLACES, *_COUNTS])]


def _unit_s(unit: "re.Match[str] | None") -> float | None:
    if unit is None:
        return None
    return 0.001 if unit["ms"] else 1.0

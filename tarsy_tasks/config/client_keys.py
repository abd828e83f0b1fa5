"""What single keys of other clients mean: rules for the rows of `dialects`, beyond those that `key_rules` has for all.

As those, they check no values.
"""

import shlex
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from tarsy_tasks.config.key_rules import SIGN_IN, Found, Taken, Unused, at, bearer, duration, inside, never
from tarsy_tasks.config.own_keys import transport
from tarsy_tasks.config.problems import KeyPath

__all__ = [
    "PROXY",
    "SANDBOX",
    "all_tools",
    "api_key",
    "ca_file",
    "call_timeout",
    "connect_timeout",
    "continue_transport",
    "custom_instructions",
    "env_file",
    "instructions",
    "opencode_timeout",
    "request_options",
    "sign_in",
    "split_witsy_arguments",
    "state",
    "vs_code_sandbox",
    "without_older_url",
]

_OFFERS_ALL = "workers offer every tool of the server; select tools with `tool_filter` of the executors"
PROXY = "set HTTPS_PROXY where the workers run"
SANDBOX = "set our own `sandbox`"

call_timeout = duration("timeouts", "call_s")
connect_timeout = duration("timeouts", "connect_s")
all_tools = never(_OFFERS_ALL)
sign_in = never(SIGN_IN)


def env_file(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """A file of variables; a relative path is one of the workspace."""
    is_relative = isinstance(value, str) and value and not value.startswith(("/", "~/", "$", "{"))
    yield Taken(("variables_file",), f"${{workspaceFolder}}/{value}" if is_relative else value, where)


def api_key(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """LibreChat's `apiKey`: a mapping; Continue's: a token."""
    if not isinstance(value, dict):
        yield from bearer(value, where)
    elif value.get("source") == "user" or value.get("key") is None:
        yield Unused(where, SIGN_IN)
    elif value.get("authorization_type") == "bearer":
        yield from bearer(value["key"], where)
    elif value.get("authorization_type") == "basic":
        yield Taken(("headers", "Authorization"), f"Basic {value['key']}", (*where, "key"))
    else:
        auth: dict[str, JsonValue] = {"type": "api_key", "key": value["key"]}
        if value.get("custom_header") is not None:
            auth["name"] = value["custom_header"]
        parts: Mapping[KeyPath, KeyPath] = {
            ("auth", "key"): (*where, "key"),
            ("auth", "name"): (*where, "custom_header"),
        }
        yield Taken(("auth",), auth, where, parts)


def instructions(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """True asks for the server's own instructions, which is what happens without this key."""
    yield Unused(where) if isinstance(value, bool) else Taken(("instructions",), value, where)


def ca_file(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """A path, or a list of them."""
    yield Taken(("ca_file",), value[0] if isinstance(value, list) and len(value) == 1 else value, where)


request_options = inside(
    {
        "headers": at("headers"),
        "timeout": call_timeout,
        "verifySsl": at("verify_ssl"),
        "caBundlePath": ca_file,
    },
    is_open=True,
)


def continue_transport(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """As everywhere, and with its options of requests in it."""
    if isinstance(value, dict) and "requestOptions" in value:
        yield from request_options(value["requestOptions"], (*where, "requestOptions"))
        value = {key: each for key, each in value.items() if key != "requestOptions"}
    yield from transport(value, where)


def vs_code_sandbox(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """Its own rules for folders and domains; or our form, in a file that is ours."""
    is_its_own = isinstance(value, dict) and any(isinstance(value.get(key), dict) for key in ("filesystem", "network"))
    yield Unused(where, SANDBOX) if is_its_own else Taken(("sandbox",), value, where)


def opencode_timeout(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """opencode's: one for all, or one for each kind of requests; `request` is the former name of `execution`."""
    kinds = {
        "startup": connect_timeout,
        "catalog": duration("timeouts", "list_s"),
        "execution": call_timeout,
        "request": call_timeout,
    }
    return (inside(kinds) if isinstance(value, dict) else call_timeout)(value, where)


def split_witsy_arguments(entry: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """An entry of a list; Witsy keeps the arguments of a program in `url`."""
    line = entry.get("url")
    if "registryId" not in entry or entry.get("type") != "stdio" or not isinstance(line, str):
        return entry
    try:
        args: list[JsonValue] = [*shlex.split(line)]
    except ValueError:  # a quote without end
        args = [*line.split()]
    return {**{key: each for key, each in entry.items() if key != "url"}, "args": args}


def state(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """Witsy's word for a switch."""
    yield Taken(("enabled",), value == "enabled" if isinstance(value, str) else value, where)


def custom_instructions(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """MCP Hub's: a text, which can be switched off."""
    if isinstance(value, dict) and value.get("text") and value.get("disabled") is not True:
        yield Taken(("instructions",), value["text"], (*where, "text"))
    else:
        yield Unused(where)


def without_older_url(entry: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """An entry with one address: Gemini CLI uses `httpUrl` where a file also has the `url` for SSE."""
    return {key: each for key, each in entry.items() if key != "url"} if entry.get("httpUrl") else entry

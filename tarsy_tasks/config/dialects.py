"""The clients whose configuration files are understood, a row each.

Owns what differs between them: where a file has its servers, which keys mean one of ours, which have no meaning here,
and how a text refers to a variable. `roots` finds the servers, `entries` applies the rows, `key_rules` has the
conversions. The rows follow the documentation and the public schemas of the clients.
"""

import shlex
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pydantic import JsonValue

from tarsy_tasks.config.key_rules import (
    SIGN_IN,
    Found,
    Rule,
    Taken,
    Unused,
    at,
    bearer,
    duration,
    inside,
    never,
    reference_list,
    references,
    texts,
    variable_of,
)
from tarsy_tasks.config.own_keys import OWN_KEYS, transport
from tarsy_tasks.config.placeholders import BRACES, DOLLAR_NAMES, DOUBLE_BRACES, Placeholder
from tarsy_tasks.config.problems import KeyPath
from tarsy_tasks.config.tarsy_keys import data_masking

__all__ = [
    "COMMON", "DIALECTS", "FOREIGN_SCHEMES", "WITHOUT_SERVER", "Dialect", "opencode_timeout", "split_witsy_arguments",
]  # fmt: skip

_NO_KEYS: Mapping[str, Rule] = MappingProxyType({})
_OFFERS_ALL = "workers offer every tool of the server; select tools with `tool_filter` of the executors"
_PROXY = "set HTTPS_PROXY where the workers run"
_SANDBOX = "set our own `sandbox`"

_call = duration("timeouts", "call_s")
_connect = duration("timeouts", "connect_s")
_all_tools = never(_OFFERS_ALL)
_sign_in = never(SIGN_IN)


def _env_file(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """A file of variables; a relative path is one of the workspace."""
    is_relative = isinstance(value, str) and value and not value.startswith(("/", "~/", "$", "{"))
    yield Taken(("variables_file",), f"${{workspaceFolder}}/{value}" if is_relative else value, where)


class Dialect(NamedTuple):
    """One client.

    Attributes:
        name: As its users call it.
        roots: Where its files have their servers; see `roots`.
        keys: What its own keys of a server mean.
        ignored: Its keys of a server that have no meaning for a worker.
        file_keys: Other keys of its files, by which such a file is recognized. None: any.
        placeholders: How its texts refer to variables, in addition to what every file may contain.
    """

    name: str
    roots: tuple[str, ...] = ("mcpServers",)
    keys: Mapping[str, Rule] = _NO_KEYS
    ignored: str = ""
    file_keys: str | None = ""
    placeholders: tuple[Placeholder, ...] = ()


WITHOUT_SERVER = {
    "type": ("builtin", "platform", "frontend", "inline_python", "inMemory", "sdk"),
    "source": ("extension", "registry"),
}
"""Entries that are part of their client, and no MCP server that others can use."""

_WEBSOCKET = "they use WebSocket, which workers do not support"
_LOCAL_SOCKET = "they use a socket of this machine, which workers do not support"
FOREIGN_SCHEMES = {"ws": _WEBSOCKET, "wss": _WEBSOCKET, "unix": _LOCAL_SOCKET, "pipe": _LOCAL_SOCKET}
"""Schemes of addresses that clients understand and workers do not, and why such a server is left out."""


def _api_key(value: JsonValue, where: KeyPath) -> Iterable[Found]:
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


def _instructions(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """True asks for the server's own instructions, which is what happens without this key."""
    yield Unused(where) if isinstance(value, bool) else Taken(("instructions",), value, where)


def _ca_file(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """A path, or a list of them."""
    yield Taken(("ca_file",), value[0] if isinstance(value, list) and len(value) == 1 else value, where)


_request_options = inside(
    {
        "headers": at("headers"),
        "timeout": _call,
        "verifySsl": at("verify_ssl"),
        "caBundlePath": _ca_file,
    },
    is_open=True,
)


def _continue_transport(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """As everywhere, and with its options of requests in it."""
    if isinstance(value, dict) and "requestOptions" in value:
        yield from _request_options(value["requestOptions"], (*where, "requestOptions"))
        value = {key: each for key, each in value.items() if key != "requestOptions"}
    yield from transport(value, where)


def _vs_code_sandbox(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """Its own rules for folders and domains; or our form, in a file that is ours."""
    is_its_own = isinstance(value, dict) and any(isinstance(value.get(key), dict) for key in ("filesystem", "network"))
    yield Unused(where, _SANDBOX) if is_its_own else Taken(("sandbox",), value, where)


_VS_CODE_KEYS: dict[str, Rule] = {
    "env": texts("env"),
    "envFile": _env_file,
    "oauth": _sign_in,
    "sandboxEnabled": never(_SANDBOX),
    "sandbox": _vs_code_sandbox,
}
_GOOSE_KEYS: dict[str, Rule] = {
    "cmd": at("command"),
    "envs": texts("env"),
    "env_keys": reference_list("env"),
    "uri": at("url"),
    "timeout": duration("timeouts", "call_s", unit_s=1),
    "available_tools": _all_tools,
}


def opencode_timeout(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """opencode's: one for all, or one for each kind of requests; `request` is the former name of `execution`."""
    kinds = {"startup": _connect, "catalog": duration("timeouts", "list_s"), "execution": _call, "request": _call}
    return (inside(kinds) if isinstance(value, dict) else _call)(value, where)


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


def _state(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    yield Taken(("enabled",), value == "enabled" if isinstance(value, str) else value, where)


COMMON = Dialect(
    "",
    roots=("mcpServers", "mcp.servers", "servers", "."),
    keys={
        "timeout": _call,
        "transport_type": at("transport"),
        "workingDirectory": at("cwd"),
        "working_directory": at("cwd"),
        "requestInit": inside({"headers": at("headers")}, is_open=True),
    },
    ignored="name title displayName display_name icon icons iconUrl tags version note notes metadata "
    "start_on_launch eventSourceInit",
)
"""What every file may have."""

DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        "TARSy",
        roots=("mcp_servers", "mcp.servers"),
        keys={
            "connection_params": transport,
            "data_masking": data_masking,
            "timeout": duration("timeouts", "call_s", unit_s=1),
        },
        ignored="server_id server_type summarization",
        file_keys=None,
    ),
    Dialect(
        "Claude Desktop",
        ignored="extensionId",
        file_keys="globalShortcut preferences scale locale userThemeMode allowDevTools isUsingBuiltInNodeForMcp "
        "isDxtAutoUpdatesEnabled coworkUserFilesPath",
    ),
    Dialect(
        "Claude Code",
        roots=("mcpServers", "projects.*.mcpServers"),
        keys={"oauth": _sign_in, "headersHelper": never("set `headers` or `auth`")},
        ignored="alwaysLoad scope",
        file_keys="numStartups installMethod autoUpdates userID oauthAccount projects tipsHistory firstStartTime "
        "hasCompletedOnboarding lastOnboardingVersion bypassPermissionsModeAccepted customApiKeyResponses theme "
        "autoUpdaterStatus verbose env permissions enabledMcpjsonServers disabledMcpjsonServers",
    ),
    Dialect(
        "Cursor",
        keys={"envFile": _env_file, "oauth": _sign_in},
        ignored="enabledTools",
    ),
    Dialect(
        "Windsurf",
        keys={"serverUrl": at("url"), "disabledTools": _all_tools},
        ignored="registry authProviderType $typeName",
    ),
    Dialect(
        "Cline",  # and Roo Code, Kilo Code, Kiro, which began as copies of it
        keys={
            "timeout": duration("timeouts", "call_s", longest_s=3600),
            "transportType": at("transport"),
            "disabledTools": _all_tools,
            "enabledTools": _all_tools,
            "oauth": _sign_in,
            "oauthScopes": _sign_in,
        },
        ignored="autoApprove alwaysAllow watchPaths remoteConfigured networkTimeout isManaged autoApproveAll source",
        file_keys="powers",
    ),
    Dialect(
        "Gemini CLI",
        keys={
            "httpUrl": at("url"),
            "tcp": at("url"),
            "includeTools": _all_tools,
            "excludeTools": _all_tools,
            "oauth": _sign_in,
            "targetAudience": _sign_in,
            "targetServiceAccount": _sign_in,
        },
        ignored="trust extensionName authProviderType extension",
        file_keys="selectedAuthType theme preferredEditor autoAccept contextFileName sandbox coreTools excludeTools "
        "allowMCPServers excludeMCPServers checkpointing telemetry usageStatisticsEnabled fileFiltering general ui "
        "security tools model context advanced experimental mcp privacy output ide hooks extensions bugCommand "
        "hideTips hideBanner vimMode maxSessionTurns summarizeToolOutput includeDirectories skills admin agents "
        "modelProviders tool permissions",
        placeholders=DOLLAR_NAMES,
    ),
    Dialect(
        "GitHub Copilot CLI",
        keys={"tools": _all_tools, "oauthClientId": _sign_in},
        ignored="isDefaultServer source filterMapping oauthPublicClient",
    ),
    Dialect(
        "LibreChat",
        keys={
            "initTimeout": _connect,
            "sseReadTimeout": never(),
            "serverInstructions": _instructions,
            "apiKey": _api_key,
            "oauth": _sign_in,
            "requiresOAuth": _sign_in,
            "oauth_headers": _sign_in,
            "obo": _sign_in,
            "proxy": never(_PROXY),
            "customUserVars": never("its variables are read where the workers run"),
        },
        ignored="iconPath chatMenu startup stderr consumeOnly dbId author",
        file_keys="version cache interface registration endpoints fileConfig mcpSettings modelSpecs actions speech "
        "rateLimits webSearch memory ocr balance transactions agents fileStrategy filteredTools includedTools "
        "secureImageLinks imageOutputType turnstile temporaryChatRetention cloudfront summarization skills",
        placeholders=DOUBLE_BRACES,
    ),
    Dialect(
        "Continue",
        keys={
            "requestOptions": _request_options,
            "connectionTimeout": _connect,
            "apiKey": _api_key,
            "envFile": _env_file,
        },
        ignored="serverName faviconUrl sourceFile",
        file_keys="name version schema models rules context prompts docs data metadata env requestOptions",
    ),
    Dialect(
        "Continue",
        roots=("experimental.modelContextProtocolServers",),
        keys={"transport": _continue_transport, "timeout": duration("timeouts", "connect_s", unit_s=0.001)},
        ignored="id faviconUrl",
        file_keys=None,
    ),
    Dialect(
        "Amazon Q",  # and the agents of Kiro
        keys={"oauthScopes": _sign_in},
        ignored="autoApprove",
        file_keys="name description prompt toolAliases allowedTools resources toolsSettings useLegacyMcpJson "
        "includeMcpJson model tools hooks keyboardShortcut welcomeMessage",
    ),
    Dialect(
        "5ire",
        roots=("mcpServers", "servers"),
        keys={"isActive": at("enabled"), "proxy": never(_PROXY)},
        ignored="key capabilities approvalPolicy homepage",
    ),
    Dialect(
        "Witsy",
        roots=("mcpServers", "mcp.servers"),
        keys={"state": _state},
        ignored="uuid registryId label",
        file_keys="llm engines plugins",
    ),
    Dialect("Trae", ignored="fromGalleryId"),
    Dialect(
        "FastMCP",
        keys={
            "sse_read_timeout": never(),
            "include_tags": _all_tools,
            "exclude_tags": _all_tools,
            "tools": _all_tools,
        },
        ignored="authentication keep_alive",
    ),
    Dialect(
        "Cherry Studio",
        keys={"isActive": at("enabled"), "baseUrl": at("url"), "disabledTools": _all_tools},
        ignored="id provider providerUrl logoUrl longRunning dxtVersion dxtPath registryUrl reference searchKey "
        "configSample disabledAutoApproveTools shouldConfig installSource isTrusted trustedAt installedAt",
    ),
    Dialect("VS Code", roots=("servers",), keys=_VS_CODE_KEYS, ignored="dev gallery", file_keys="inputs sandbox"),
    Dialect("VS Code", roots=("mcp.servers",), keys=_VS_CODE_KEYS, ignored="dev gallery", file_keys=None),
    Dialect(
        "Zed",
        roots=("context_servers",),
        keys={"oauth": _sign_in},
        ignored="source remote settings",
        file_keys=None,
    ),
    Dialect(
        "Codex",
        roots=("mcp_servers",),
        keys={
            "bearer_token_env_var": variable_of(bearer),
            "http_headers": at("headers"),
            "env_http_headers": references("headers"),
            "env_vars": reference_list("env"),
            "startup_timeout_sec": duration("timeouts", "connect_s", unit_s=1),
            "startup_timeout_ms": duration("timeouts", "connect_s", unit_s=0.001),
            "tool_timeout_sec": duration("timeouts", "call_s", unit_s=1),
            "enabled_tools": _all_tools,
            "disabled_tools": _all_tools,
            "oauth": _sign_in,
            "scopes": _sign_in,
            "oauth_resource": _sign_in,
        },
        ignored="tools supports_parallel_tool_calls default_tools_approval_mode experimental_environment "
        "environment_id trust",
        file_keys=None,
    ),
    Dialect(
        "Goose",
        roots=("extensions",),
        keys={**_GOOSE_KEYS, "config": inside({**OWN_KEYS, **_GOOSE_KEYS}, is_open=True)},
        ignored="bundled socket code dependencies",
        file_keys=None,
    ),
    Dialect(
        "opencode",
        roots=("mcp", "mcp.servers"),
        keys={"environment": texts("env"), "timeout": opencode_timeout, "oauth": _sign_in},
        ignored="codemode",
        file_keys=None,
        placeholders=BRACES,
    ),
    Dialect("Crush", roots=("mcp",), keys={"disabled_tools": _all_tools}, file_keys=None, placeholders=DOLLAR_NAMES),
    Dialect("Amp", roots=("amp.mcpServers",), keys={"includeTools": _all_tools}, file_keys=None),
)

"""The clients whose configuration files are understood, a row each.

Owns what differs between them: where a file has its servers, which keys mean one of ours, which have no meaning here,
and how a text refers to a variable. `roots` finds the servers, `entries` applies the rows, `client_keys`
and `key_rules` have the conversions. The rows follow the documentation and the public schemas of the clients.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tarsy_tasks.config.client_keys import (
    PROXY,
    SANDBOX,
    all_tools,
    api_key,
    call_timeout,
    connect_timeout,
    continue_transport,
    custom_instructions,
    env_file,
    instructions,
    opencode_timeout,
    request_options,
    sign_in,
    state,
    vs_code_sandbox,
)
from tarsy_tasks.config.key_rules import (
    Rule,
    at,
    bearer,
    duration,
    inside,
    negated,
    never,
    reference_list,
    references,
    texts,
    variable_of,
)
from tarsy_tasks.config.own_keys import OWN_KEYS, transport
from tarsy_tasks.config.placeholders import BRACES, DOLLAR_NAMES, DOUBLE_BRACES, Placeholder
from tarsy_tasks.config.tarsy_keys import data_masking

__all__ = ["COMMON", "DIALECTS", "FOREIGN_SCHEMES", "WITHOUT_SERVER", "Dialect"]

_NO_KEYS: Mapping[str, Rule] = MappingProxyType({})


class Dialect(NamedTuple):
    """One client.

    Attributes:
        name: As its users call it.
        roots: Where its files have their servers; see `roots`.
        keys: What its own keys of a server mean.
        ignored: Its keys of a server that have no meaning for a worker.
        file_keys: Other keys of its files, by which such a file is recognized. None: any.
        file_name: The name of a file that only this client has, and that may have any other keys.
        placeholders: How its texts refer to variables, in addition to what every file may contain.
    """

    name: str
    roots: tuple[str, ...] = ("mcpServers",)
    keys: Mapping[str, Rule] = _NO_KEYS
    ignored: str = ""
    file_keys: str | None = ""
    file_name: str = ""
    placeholders: tuple[Placeholder, ...] = ()


WITHOUT_SERVER = {
    "type": ("builtin", "platform", "frontend", "inline_python", "inMemory", "inmemory", "sdk"),
    "source": ("extension", "registry"),
}
"""Entries that are part of their client, and no MCP server that others can use."""

_WEBSOCKET = "they use WebSocket, which workers do not support"
_LOCAL_SOCKET = "they use a socket of this machine, which workers do not support"
FOREIGN_SCHEMES = {"ws": _WEBSOCKET, "wss": _WEBSOCKET, "unix": _LOCAL_SOCKET, "pipe": _LOCAL_SOCKET}
"""Schemes of addresses that clients understand and workers do not, and why such a server is left out."""

_VS_CODE_KEYS: dict[str, Rule] = {
    "env": texts("env"),
    "envFile": env_file,
    "oauth": sign_in,
    "sandboxEnabled": never(SANDBOX),
    "sandbox": vs_code_sandbox,
}
_GOOSE_KEYS: dict[str, Rule] = {
    "cmd": at("command"),
    "envs": texts("env"),
    "env_keys": reference_list("env"),
    "uri": at("url"),
    "timeout": duration("timeouts", "call_s", unit_s=1),
    "available_tools": all_tools,
}

COMMON = Dialect(
    "",
    roots=("mcpServers", "mcp.servers", "servers", "."),
    keys={
        "timeout": call_timeout,
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
        ignored="server_id server_type",
        file_keys=None,
    ),
    Dialect(
        "Claude Desktop",
        ignored="extensionId",
        file_keys="globalShortcut preferences scale locale userThemeMode allowDevTools isUsingBuiltInNodeForMcp "
        "isDxtAutoUpdatesEnabled coworkUserFilesPath",
        file_name="claude_desktop_config.json",
    ),
    Dialect(
        "Claude Code",
        roots=("mcpServers", "projects.*.mcpServers"),
        keys={"oauth": sign_in, "headersHelper": never("set `headers` or `auth`")},
        ignored="alwaysLoad scope",
        file_keys="numStartups installMethod autoUpdates userID oauthAccount projects tipsHistory firstStartTime "
        "hasCompletedOnboarding lastOnboardingVersion bypassPermissionsModeAccepted customApiKeyResponses theme "
        "autoUpdaterStatus verbose env permissions enabledMcpjsonServers disabledMcpjsonServers "
        "enableAllProjectMcpServers allowedMcpServers deniedMcpServers",
    ),
    Dialect(
        "Cursor",
        keys={"envFile": env_file, "oauth": sign_in},
        ignored="enabledTools",
    ),
    Dialect(
        "Windsurf",
        keys={"serverUrl": at("url"), "disabledTools": all_tools},
        ignored="registry authProviderType $typeName",
    ),
    Dialect(
        "Cline",  # and Roo Code, Kilo Code, Kiro, which began as copies of it
        keys={
            "timeout": duration("timeouts", "call_s", longest_s=3600),
            "transportType": at("transport"),
            "disabledTools": all_tools,
            "enabledTools": all_tools,
            "oauth": sign_in,
            "oauthScopes": sign_in,
        },
        ignored="autoApprove alwaysAllow watchPaths remoteConfigured networkTimeout isManaged autoApproveAll source",
        file_keys="powers",
    ),
    Dialect(
        "Gemini CLI",
        keys={
            "httpUrl": at("url"),
            "includeTools": all_tools,
            "excludeTools": all_tools,
            "oauth": sign_in,
            "targetAudience": sign_in,
            "targetServiceAccount": sign_in,
        },
        ignored="trust extensionName authProviderType extension tcp",
        file_keys="selectedAuthType theme preferredEditor autoAccept contextFileName sandbox coreTools excludeTools "
        "allowMCPServers excludeMCPServers checkpointing telemetry usageStatisticsEnabled fileFiltering general ui "
        "security tools model context advanced experimental mcp privacy output ide hooks extensions bugCommand "
        "hideTips hideBanner vimMode maxSessionTurns summarizeToolOutput includeDirectories skills admin agents "
        "modelProviders tool permissions",
        placeholders=DOLLAR_NAMES,
    ),
    Dialect(
        "GitHub Copilot CLI",
        keys={"tools": all_tools, "oauthClientId": sign_in},
        ignored="isDefaultServer source filterMapping oauthPublicClient",
    ),
    Dialect(
        "LibreChat",
        keys={
            "initTimeout": connect_timeout,
            "sseReadTimeout": never(),
            "serverInstructions": instructions,
            "apiKey": api_key,
            "oauth": sign_in,
            "requiresOAuth": sign_in,
            "oauth_headers": sign_in,
            "obo": sign_in,
            "proxy": never(PROXY),
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
            "requestOptions": request_options,
            "connectionTimeout": connect_timeout,
            "apiKey": api_key,
            "envFile": env_file,
        },
        ignored="serverName faviconUrl sourceFile",
        file_keys="name version schema models rules context prompts docs data metadata env requestOptions",
    ),
    Dialect(
        "Continue",
        roots=("experimental.modelContextProtocolServers",),
        keys={"transport": continue_transport, "timeout": duration("timeouts", "connect_s", unit_s=0.001)},
        ignored="id faviconUrl",
        file_keys=None,
    ),
    Dialect(
        "Amazon Q",  # and the agents of Kiro
        keys={"oauthScopes": sign_in},
        ignored="autoApprove",
        file_keys="name description prompt toolAliases allowedTools resources toolsSettings useLegacyMcpJson "
        "includeMcpJson model tools hooks keyboardShortcut welcomeMessage",
    ),
    Dialect(
        "5ire",
        roots=("mcpServers", "servers"),
        keys={"isActive": at("enabled"), "proxy": never(PROXY)},
        ignored="key capabilities approvalPolicy homepage",
    ),
    Dialect(
        "Witsy",
        roots=("mcpServers", "mcp.servers"),
        keys={"state": state},
        ignored="uuid registryId label",
        file_keys="llm engines plugins",
    ),
    Dialect("Trae", ignored="fromGalleryId"),
    Dialect("Jan", keys={"active": at("enabled")}, ignored="official", file_keys="mcpSettings"),
    Dialect("AnythingLLM", ignored="anythingllm"),
    Dialect(
        "DeepChat",
        keys={"disable": negated("enabled"), "customHeaders": at("headers")},
        ignored="descriptions",
        file_keys="defaultServers mcpEnabled",
    ),
    Dialect(
        "MCP Hub",
        keys={"disabled_tools": all_tools, "custom_instructions": custom_instructions},
        ignored="disabled_prompts disabled_resources disabled_resourceTemplates",
        file_keys="nativeMCPServers",
    ),
    Dialect("MCPHost", keys={"allowedTools": all_tools, "excludedTools": all_tools}),
    Dialect("mcpo", ignored="client_header_forwarding"),
    Dialect(
        "MCPorter",
        keys={"bearerTokenEnv": variable_of(bearer), "oauthRedirectUrl": sign_in, "oauthScope": sign_in},
        ignored="lifecycle logging tokenCacheDir clientName",
        file_keys="imports daemonIdleTimeoutMs",
    ),
    Dialect(
        "Pydantic AI",
        keys={"timeout": connect_timeout, "read_timeout": call_timeout},
        ignored="tool_prefix log_level allow_sampling max_retries",
    ),
    Dialect(
        "mcp-agent",  # and fast-agent, which began as a copy of it
        roots=("mcp.servers",),
        keys={
            "read_timeout_seconds": duration("timeouts", "call_s", unit_s=1),
            "http_timeout_seconds": never(),
            "read_transport_sse_timeout_seconds": never(),
            "allowed_tools": all_tools,
        },
        ignored="roots terminate_on_close load_on_start include_instructions elicitation sampling implementation "
        "ping_interval_seconds max_missed_pings reconnect_on_disconnect",
        file_keys=None,
    ),
    Dialect(
        "FastMCP",
        keys={
            "sse_read_timeout": never(),
            "include_tags": all_tools,
            "exclude_tags": all_tools,
            "tools": all_tools,
        },
        ignored="authentication keep_alive",
    ),
    Dialect(
        "Cherry Studio",
        keys={"isActive": at("enabled"), "baseUrl": at("url"), "disabledTools": all_tools},
        ignored="id provider providerUrl logoUrl longRunning dxtVersion dxtPath registryUrl reference searchKey "
        "configSample disabledAutoApproveTools shouldConfig installSource isTrusted trustedAt installedAt",
    ),
    Dialect("VS Code", roots=("servers",), keys=_VS_CODE_KEYS, ignored="dev gallery", file_keys="inputs sandbox"),
    Dialect(
        "VS Code", roots=("mcp.servers", "*.mcp.servers"), keys=_VS_CODE_KEYS, ignored="dev gallery", file_keys=None
    ),
    Dialect(
        "Zed",
        roots=("context_servers",),
        keys={"oauth": sign_in},
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
            "enabled_tools": all_tools,
            "disabled_tools": all_tools,
            "oauth": sign_in,
            "scopes": sign_in,
            "oauth_resource": sign_in,
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
        keys={"environment": texts("env"), "timeout": opencode_timeout, "oauth": sign_in},
        ignored="codemode",
        file_keys=None,
        placeholders=BRACES,
    ),
    Dialect("Crush", roots=("mcp",), keys={"disabled_tools": all_tools}, file_keys=None, placeholders=DOLLAR_NAMES),
    Dialect("Zencoder", roots=("zencoder.mcpServers",), file_keys=None),
    Dialect("Amp", roots=("amp.mcpServers",), keys={"includeTools": all_tools}, file_keys=None),
)

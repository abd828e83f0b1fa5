"""Entries for well-known servers, each of its official publisher and in a version that was reviewed.

Owns the table, and how the words of a command line become a part of an entry. What runs it needs (`npx`, `uvx`) has to
be where the workers are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tarsy_tasks.config.problems import suggest
from tarsy_tasks.errors import ConfigError

__all__ = ["PRESETS", "Preset", "build_preset"]

_NPM_CACHE = "${HOME}/.npm"
_UV_FILES = ("${HOME}/.cache/uv", "${HOME}/.local/share/uv")
_DOWNLOAD_S = 120
"""The first start downloads the program."""


@dataclass(frozen=True)
class Preset:
    """One of them.

    Attributes:
        publisher: Who publishes the server.
        source: Its package and version, or its address.
        entry: In the keys of a configuration file, without what the words add.
        words: What the words on the command line are; empty if there are none.
        folders: The words are folders, which the server may write.
        before_words: Arguments of the program in front of them.
        most_words: How many there can be.
        variables: What it needs in the environment of the workers, by name, and what that is.
        tools: The tools that this version lists; empty if that was not seen.
        untested: Why no test starts it; empty if one does.
    """

    publisher: str
    source: str
    entry: Mapping[str, Any]
    words: str = ""
    folders: bool = False
    before_words: tuple[str, ...] = ()
    most_words: int = 0
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: tuple[str, ...] = ()
    untested: str = ""


def _program(
    command: str, args: Sequence[str], write: Sequence[str], sandbox: Mapping[str, Any] | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "command": command,
        "args": [*args],
        "inherit_env": "minimal",
        "sandbox": {"network": True, "write": [*write], **(sandbox or {})},
        **more,
        "timeouts": {"connect_s": _DOWNLOAD_S, **more.get("timeouts", {})},
    }


def _npx(package: str, *args: str, sandbox: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return _program("npx", ("-y", package, *args), (_NPM_CACHE,), sandbox, more)


def _uvx(package: str, *args: str, **more: Any) -> dict[str, Any]:
    return _program("uvx", (package, *args), _UV_FILES, None, more)


def _remote(url: str, variable: str, **timeouts: float) -> dict[str, Any]:
    return {"url": url, "auth": {"type": "bearer", "token": f"${{{variable}}}"}, "timeouts": timeouts}


_NOT_STARTED = "no test of this package starts it"
_MCP_PROJECT = "the MCP project (modelcontextprotocol/servers)"
_FILESYSTEM = "@modelcontextprotocol/server-filesystem@2026.8.31"
_TOOLBOX = "@toolbox-sdk/server@1.12.0"
_PLAYWRIGHT = "@playwright/mcp@0.0.83"
_FETCH = "mcp-server-fetch@2026.10.24"
_GIT = "mcp-server-git@2026.10.19"

PRESETS: dict[str, Preset] = {
    "filesystem": Preset(
        _MCP_PROJECT,
        f"npm {_FILESYSTEM}",
        _npx(_FILESYSTEM, timeouts={"call_s": 30, "tools": {"search_files": 60, "directory_tree": 60}}),
        words="the folders that it may read and write",
        folders=True,
        most_words=32,
        tools=(
            *("create_directory", "directory_tree", "edit_file", "get_file_info", "list_allowed_directories"),
            *("list_directory", "list_directory_with_sizes", "move_file", "read_file", "read_media_file"),
            *("read_multiple_files", "read_text_file", "search_files", "write_file"),
        ),
    ),
    "postgres": Preset(
        "Google (googleapis/mcp-toolbox)",
        f"npm {_TOOLBOX}",
        _npx(
            _TOOLBOX,
            "--prebuilt",
            "postgres",
            "--stdio",
            env={
                "POSTGRES_HOST": "${POSTGRES_HOST}",
                "POSTGRES_PORT": "${POSTGRES_PORT:-5432}",
                "POSTGRES_DATABASE": "${POSTGRES_DATABASE}",
                "POSTGRES_USER": "${POSTGRES_USER}",
                "POSTGRES_PASSWORD": "${POSTGRES_PASSWORD}",
            },
            timeouts={"call_s": 60},
        ),
        variables={
            "POSTGRES_HOST": "the host of the database",
            "POSTGRES_DATABASE": "its name",
            "POSTGRES_USER": "a role that may do no more than agents may: the server itself restricts nothing",
            "POSTGRES_PASSWORD": "of that role",
        },
        tools=(
            *("database_overview", "execute_sql", "get_column_cardinality", "get_query_plan"),
            *("list_active_queries", "list_autovacuum_configurations", "list_available_extensions"),
            *("list_database_stats", "list_indexes", "list_installed_extensions", "list_invalid_indexes"),
            *("list_locks", "list_memory_configurations", "list_pg_settings", "list_publication_tables"),
            *("list_query_stats", "list_replication_slots", "list_roles", "list_schemas", "list_sequences"),
            *("list_stored_procedure", "list_table_stats", "list_tables", "list_tablespaces"),
            *("list_top_bloated_tables", "list_triggers", "list_views", "long_running_transactions"),
            *("replication_stats",),
        ),
    ),
    "fetch": Preset(
        _MCP_PROJECT,
        f"PyPI {_FETCH}",
        _uvx(_FETCH, timeouts={"call_s": 60}),
        untested=_NOT_STARTED,
    ),
    "git": Preset(
        _MCP_PROJECT,
        f"PyPI {_GIT}",
        _uvx(_GIT, timeouts={"call_s": 30}),
        words="the folder of the repository",
        folders=True,
        before_words=("--repository",),
        most_words=1,
        untested=_NOT_STARTED,
    ),
    "playwright": Preset(
        "Microsoft (microsoft/playwright-mcp)",
        f"npm {_PLAYWRIGHT}",
        _npx(
            _PLAYWRIGHT,
            *("--headless", "--isolated", "--no-sandbox"),
            sandbox={"read": ["${HOME}/.cache/ms-playwright"], "memory_mb": 4096, "processes": 1024},
            session="per_call",
            timeouts={"call_s": 60},
        ),
        untested=_NOT_STARTED,
    ),
    "github": Preset(
        "GitHub (github/github-mcp-server)",
        "https://api.githubcopilot.com/mcp/",
        _remote("https://api.githubcopilot.com/mcp/", "GITHUB_TOKEN", call_s=60),
        variables={"GITHUB_TOKEN": "a personal access token with the rights that agents need"},
        untested="it needs an account of GitHub",
    ),
    "slack": Preset(
        "Slack",
        "https://mcp.slack.com/mcp",
        _remote("https://mcp.slack.com/mcp", "SLACK_USER_TOKEN", call_s=60),
        variables={"SLACK_USER_TOKEN": "a user token of an app that Slack permits to use its MCP server"},
        untested="it needs an account of Slack",
    ),
}
"""By name."""


def build_preset(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The entry of a preset, in the keys of a configuration file.

    Args:
        words: What the preset says of its `words`.

    Raises:
        ConfigError: There is no such preset, or it needs other words.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; {suggest(name, PRESETS)}")
    preset = PRESETS[name]
    if not preset.words and words:
        raise ConfigError(f"the preset {name} takes no words, found {' '.join(words)!r}")
    if preset.words and not 0 < len(words) <= preset.most_words:
        raise ConfigError(f"the preset {name} needs {preset.words}: `servers add NAME --preset {name} /path`")
    if preset.folders and (relative := [word for word in words if not word.startswith(("/", "${"))]):
        raise ConfigError(f"the preset {name}: {relative[0]!r} is not an absolute path; workers may run elsewhere")
    entry: dict[str, Any] = {"description": f"{preset.publisher}, {preset.source}", **preset.entry}
    if words:
        entry["args"] = [*entry["args"], *preset.before_words, *words]
    if preset.folders:
        entry["sandbox"] = {**entry["sandbox"], "write": [*entry["sandbox"]["write"], *words]}
    return entry

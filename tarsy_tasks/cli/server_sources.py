"""What `servers add` makes an entry of, besides a command and a URL: a preset, or a `server.json` of the MCP registry.

Owns what is said of such an entry: who publishes the server, which variables workers need, and what was not tested.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tarsy_tasks.config.presets import PRESETS, build_preset
from tarsy_tasks.config.server_json import load_server_json

__all__ = ["SourcedEntry", "build_from_preset", "build_from_server_json"]


class SourcedEntry(NamedTuple):
    """An entry, in the keys of a configuration file, and what to know about it, by a word for it."""

    entry: dict[str, Any]
    about: dict[str, Any]

    def describe(self) -> list[str]:
        """What to know, in lines."""
        about = self.about
        lines = [f"{word}: {about[word]}" for word in ("publisher", "source", "untested") if about.get(word)]
        if about.get("tools"):
            lines.append(f"tools: {', '.join(about['tools'])}")
        if about["variables"]:
            lines.append("in the environment of the workers it needs:")
            lines += [f"  {name}: {text}" if text else f"  {name}" for name, text in about["variables"].items()]
        return lines


def build_from_preset(name: str, words: Sequence[str]) -> SourcedEntry:
    """Raises `ConfigError` as `build_preset`."""
    preset = PRESETS.get(name)
    entry = build_preset(name, words)
    assert preset is not None
    about = {"publisher": preset.publisher, "source": preset.source, "untested": preset.untested}
    return SourcedEntry(entry, {**about, "tools": [*preset.tools], "variables": dict(preset.variables)})


def build_from_server_json(path: Path, *, is_remote: bool) -> SourcedEntry:
    """Raises `ConfigError` as `load_server_json`."""
    found = load_server_json(path, is_remote=is_remote)
    return SourcedEntry(found.entry, {"source": str(path), "variables": found.variables})

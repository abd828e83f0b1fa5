"""A client's configuration file in our own form, and the secrets that it contained.

Owns how an entry is written, and what takes the place of a secret: a reference to a variable, or to a file. It writes
no files (`cli.config` does).
"""

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from tarsy_tasks.config.inheritance import variables_of
from tarsy_tasks.config.loading import load_file
from tarsy_tasks.config.problems import KeyPath
from tarsy_tasks.config.secret_places import find_secrets, find_written
from tarsy_tasks.config.servers import ServerConfig
from tarsy_tasks.config.variables import (
    FIELDS,
    REFERENCE,
    convert_texts,
    find_references,
    has_references,
    is_broker_variable,
)

__all__ = ["ImportedConfig", "import_config"]

_OPTION = re.compile(r"--?(?P<option>[A-Za-z][\w.-]*)(?:=.*)?|(?P<pair>[A-Za-z_][\w-]*)(?:=|:(?!//)).*", re.DOTALL)


@dataclass(frozen=True)
class ImportedConfig:
    """A configuration to write.

    Attributes:
        data: The content of the file.
        secrets: What was taken out of it, by name: those of variables, or of files.
        missing: Variables that it refers to, whose values are somewhere else.
    """

    data: dict[str, JsonValue] = field(repr=False)
    secrets: dict[str, str] = field(repr=False)
    missing: list[str]


def import_config(path: Path, refer: Callable[[str], str] | None = None) -> ImportedConfig:
    """Read a file of any client.

    Args:
        path: The file.
        refer: Gives what takes the place of a secret, by its name. None: secrets stay where they are.

    Raises:
        ConfigError: As `load_config`.
    """
    loaded = load_file(path)
    referred = {name for _, server in loaded.servers.values() for name in variables_of(server)}
    secrets = _Secrets(referred)
    servers: dict[str, JsonValue] = {}
    for entry, server in loaded.servers.values():
        values = deepcopy(entry.values)
        if refer is not None:
            for at in find_written(server):
                secrets.take_out(values, server, at, refer)
        servers[entry.name or server.name] = _write(values, server)
    data: dict[str, JsonValue] = {"mcpServers": servers}
    if interceptors := loaded.file.data.get("interceptors"):
        data["interceptors"] = interceptors
    # Without it, agents could do what they may not; a wrong one is refused when it is read.
    if (policy := loaded.file.data.get("policy")) is not None:
        data["policy"] = policy
    needed = {name for _, server in loaded.servers.values() for name in _needed(server)}
    return ImportedConfig(data, secrets.found, sorted(needed))


def _needed(server: ServerConfig) -> set[str]:
    """The variables without which a server cannot start, and which not every process has."""
    names: set[str] = set()

    def collect(text: str, _: KeyPath) -> str:
        for match in REFERENCE.finditer(text):
            if match["file"]:
                names.update(find_references(match["file"]))
            elif match["default"] is None and (name := match["name"] or match["dotted"]):
                names.add(name)
        return text

    convert_texts(server.model_dump(include=set(FIELDS)), (), collect)
    return names - {"HOME", "PATH", "USER"}


class _Secrets:
    """The secrets of a configuration, by the names that they get."""

    def __init__(self, taken: set[str]) -> None:
        self.found: dict[str, str] = {}
        self._taken = taken

    def take_out(self, values: Any, server: ServerConfig, at: KeyPath, refer: Callable[[str], str]) -> None:
        """Put a reference in place of each secret at a place of a server."""
        *around, last = at
        for key in around:
            values = values[key]
        text: str = values[last]
        base = _base_name(server, at)
        whole = REFERENCE.fullmatch(text)
        if whole is not None and whole["name"] and whole["default"]:
            values[last] = refer(self._name(server, base, whole["default"]))
        elif not has_references(text):
            found = {each.value for each in find_secrets(server) if each.at == at and each.value in text} or {text}
            for value in sorted(found, key=len, reverse=True):
                # Part of a longer text, as a password in an address: the text itself has the better claim to the name.
                name = f"{base.removesuffix('_SECRET')}_SECRET" if "://" in text and value != text else base
                text = text.replace(value, refer(self._name(server, name, value.replace("$${", "${"))))
            values[last] = text

    def _name(self, server: ServerConfig, base: str, value: str) -> str:
        """The same secret has one name; a name that is in use gets that of the server in front."""
        known = next((name for name, other in self.found.items() if other == value), None)
        if known is not None:
            return known
        own = _variable(f"{server.name}_{base}")
        name = base
        if name in self._taken or name in self.found or is_broker_variable(name):
            name = own
        number = 2
        while name in self._taken or name in self.found or is_broker_variable(name):
            name, number = f"MCP_{own}_{number}", number + 1
        self.found[name] = value
        return name


def _variable(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()
    return f"MCP_{name}" if not name or name[0].isdigit() else name


def _base_name(server: ServerConfig, at: KeyPath) -> str:
    """What a secret is called: as the server calls it, where it has a name of its own."""
    match at:
        case ("env", str(name)):
            return _variable(name)
        case ("headers", str(name)):
            return _variable(f"{server.name}_{re.sub('(?i)^x-', '', name)}")
        case ("auth", str(key)):
            return _variable(f"{server.name}_{key}")
        case ("args", int(index)):
            for text in (server.args[index], server.args[index - 1] if index else ""):
                if (match := _OPTION.fullmatch(text)) is not None:
                    return _variable(match["pair"] or f"{server.name}_{match['option']}")
            return _variable(f"{server.name}_secret")
        case _:
            return _variable(f"{server.name}_{at[0]}")


def _write(values: dict[str, JsonValue], server: ServerConfig) -> dict[str, JsonValue]:
    """An entry without what is the default anyway, in the order of the reference."""
    fields = ServerConfig.model_fields
    kept: dict[str, JsonValue] = {}
    for key in ("description", "transport", *fields):
        if key in values and getattr(server, key) != fields[key].get_default(call_default_factory=True):
            kept[key] = _shorten(values[key])
    kept.pop("transport", None)
    bare = {key: values[key] for key in ("command", "url", "native") if key in values}
    follows = ServerConfig.model_validate({**bare, "name": server.name}).transport
    return kept if follows == server.transport else {"transport": server.transport, **kept}


def _shorten(value: JsonValue) -> JsonValue:
    """Whole seconds without a fraction."""
    if isinstance(value, dict):
        return {key: _shorten(each) for key, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value

"""A `server.json` of the MCP registry, as an entry of a configuration.

Owns what its keys mean: packages that are started with `npx`, `uvx` or `docker`, and remote servers. What somebody has
to fill in becomes a reference to a variable. It says nothing of who published the server.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from tarsy_tasks.errors import ConfigError

__all__ = ["ConvertedServer", "load_server_json"]

_LARGEST_BYTES = 1024 * 1024
_PLACE = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
_NO_NAME = re.compile(r"[^A-Z0-9]+")


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore")


class _Input(_Model):
    """A value, or what somebody has to fill in."""

    description: str = ""
    value: str | None = None
    default: str | None = None
    is_required: bool = False
    variables: dict[str, "_Input"] = Field(default_factory=dict[str, "_Input"])


class _NamedInput(_Input):
    name: str


class _Argument(_Input):
    type: str = "positional"
    name: str = ""
    value_hint: str = ""


class _Transport(_Model):
    type: str
    url: str | None = None
    headers: list[_NamedInput] = Field(default_factory=list[_NamedInput])
    variables: dict[str, _Input] = Field(default_factory=dict[str, _Input])


class _Package(_Model):
    registry_type: str
    identifier: str
    version: str = ""
    transport: _Transport = Field(default_factory=lambda: _Transport(type="stdio"))
    runtime_arguments: list[_Argument] = Field(default_factory=list[_Argument])
    package_arguments: list[_Argument] = Field(default_factory=list[_Argument])
    environment_variables: list[_NamedInput] = Field(default_factory=list[_NamedInput])


class _Document(_Model):
    name: str
    version: str = ""
    packages: list[_Package] = Field(default_factory=list[_Package])
    remotes: list[_Transport] = Field(default_factory=list[_Transport])


class ConvertedServer(NamedTuple):
    """An entry, in the keys of a configuration file, and the variables that it refers to and that have no default, by
    name, with their descriptions."""

    entry: dict[str, Any]
    variables: dict[str, str]


def load_server_json(path: Path, *, is_remote: bool = False) -> ConvertedServer:
    """The server of a file.

    Args:
        is_remote: Its remote address, even if it has a package.

    Raises:
        ConfigError: The file cannot be read, is no `server.json`, or has no server that can be used.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(text) > _LARGEST_BYTES:
        raise ConfigError(f"{path}: it has more than {_LARGEST_BYTES} bytes, so it is not a server.json")
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: not valid JSON") from None
    if isinstance(found, dict) and isinstance(inner := cast("dict[str, Any]", found).get("server"), dict):
        found = cast("dict[str, Any]", inner)  # as the registry itself answers
    try:
        document = _Document.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise ConfigError(f"{path}: not a server.json of the MCP registry: {place}: {first['msg']}") from None
    return _Conversion(path, document).convert(is_remote=is_remote)


class _Conversion:
    def __init__(self, path: Path, document: _Document) -> None:
        self._path = path
        self._document = document
        self._variables: dict[str, str] = {}

    def convert(self, *, is_remote: bool) -> ConvertedServer:
        document = self._document
        packages = [] if is_remote else [each for each in document.packages if each.transport.type == "stdio"]
        package = next((each for each in packages if each.registry_type in _RUNNERS), None)
        remotes = sorted(document.remotes, key=lambda each: each.type != "streamable-http")
        remote = next((each for each in remotes if each.type in ("streamable-http", "sse")), None)
        if package is not None:
            entry = self._start(package)
        elif remote is not None and remote.url:
            entry = self._reach(remote, remote.url)
        else:
            kinds = sorted({f"{each.registry_type} over {each.transport.type}" for each in document.packages})
            raise ConfigError(
                f"{self._path}: {document.name} has no server that can be used: neither a package of "
                f"{', '.join(_RUNNERS)} over stdio nor a remote address"
                + (f" (found {', '.join(kinds)})" if kinds else "")
            )
        described = " ".join(filter(None, (document.name, document.version)))
        return ConvertedServer({"description": described, **entry}, self._variables)

    def _start(self, package: _Package) -> dict[str, Any]:
        env = dict(self._fill_in_all(package.environment_variables))
        before = [*self._arguments(package.runtime_arguments)]
        command, args = _RUNNERS[package.registry_type](package, before, env)
        args += self._arguments(package.package_arguments)
        return {"command": command, "args": args, "inherit_env": "minimal", **({"env": env} if env else {})}

    def _reach(self, remote: _Transport, url: str) -> dict[str, Any]:
        headers = dict(self._fill_in_all(remote.headers))
        address = self._replace(url, remote.variables)
        kind = {"transport": "sse"} if remote.type == "sse" else {}
        return {"url": address, **kind, **({"headers": headers} if headers else {})}

    def _fill_in_all(self, inputs: list[_NamedInput]) -> Iterator[tuple[str, str]]:
        for each in inputs:
            if (text := self._fill_in(each, each.name)) is not None:
                yield each.name, text

    def _arguments(self, arguments: list[_Argument]) -> Iterator[str]:
        for each in arguments:
            if (text := self._fill_in(each, each.value_hint or each.name)) is not None:
                yield from (each.name, text) if each.type == "named" else (text,)

    def _fill_in(self, given: _Input, name: str) -> str | None:
        """A text with references; None for what may be left out."""
        if given.value is not None:
            return self._replace(given.value, given.variables)
        if not given.is_required and given.default is None:
            return None
        return self._refer(given, name)

    def _replace(self, text: str, variables: Mapping[str, _Input]) -> str:
        def refer(match: re.Match[str]) -> str:
            given = variables.get(match[1])
            return match[0] if given is None else given.value or self._refer(given, match[1])

        return _PLACE.sub(refer, text.replace("${", "$${"))

    def _refer(self, given: _Input, name: str) -> str:
        variable = _variable(name)
        if given.default is not None:
            return f"${{{variable}:-{given.default}}}"
        self._variables[variable] = given.description
        return f"${{{variable}}}"


def _variable(name: str) -> str:
    return _NO_NAME.sub("_", name.upper()).strip("_") or "VALUE"


def _pinned(package: _Package) -> str:
    return f"{package.identifier}@{package.version}" if package.version else package.identifier


def _run_npx(package: _Package, before: list[str], _: Mapping[str, str]) -> tuple[str, list[str]]:
    return "npx", [*dict.fromkeys(["-y", *before]), _pinned(package)]


def _run_uvx(package: _Package, before: list[str], _: Mapping[str, str]) -> tuple[str, list[str]]:
    return "uvx", [*before, _pinned(package)]


def _run_docker(package: _Package, before: list[str], env: Mapping[str, str]) -> tuple[str, list[str]]:
    image = package.identifier
    if package.version and ":" not in image.rpartition("/")[2] and "@" not in image:
        image = f"{image}:{package.version}"
    passed = [word for name in env if name not in before for word in ("-e", name)]
    return "docker", ["run", "-i", "--rm", *passed, *before, image]


_RUNNERS = {"npm": _run_npx, "pypi": _run_uvx, "oci": _run_docker}
"""By `registryType`."""

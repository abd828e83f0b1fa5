"""The sandbox of a stdio server: what its processes may read, write and use.

Owns the model, its presets and defaults. How it is enforced is in `worker/sandbox`.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from tarsy_tasks.config.problems import describe_kind, suggest
from tarsy_tasks.config.texts import Line, Model
from tarsy_tasks.config.variables import RESOLVED, has_references

__all__ = ["Sandbox", "SandboxSetting"]

_PRESETS: dict[str, dict[str, Any] | None] = {
    "off": None,
    "no-network": {"read": ["/"], "write": ["/"]},
    "strict": {},
}


def _validate_path(value: str, info: ValidationInfo) -> str:
    if not value.startswith("/") and (info.context is RESOLVED or not has_references(value)):
        raise ValueError("expected an absolute path such as `/srv/data` or `${HOME}/data`")
    return value


_Path = Annotated[Line, AfterValidator(_validate_path)]
_MOST = 2**31 - 1


class Sandbox(Model):
    """What the processes of a server may do; whatever is not listed here is refused by the kernel."""

    network: bool = Field(default=False, description="Whether they may use the network.")
    read: list[_Path] = Field(
        default_factory=list,
        description="Files and folders to read and execute, in addition to the system's programs and libraries, the "
        "server's own program and its `cwd`.",
    )
    write: list[_Path] = Field(default_factory=list, description="Files and folders to read, write and execute.")
    memory_mb: int = Field(default=2048, ge=64, le=_MOST, description="Memory of all its processes together, in MiB.")
    cpu_s: int | None = Field(
        default=None, ge=1, le=_MOST, description="CPU time after which a process is killed, in seconds."
    )
    processes: int = Field(default=256, ge=1, le=_MOST, description="Processes and threads at a time.")
    files: int = Field(default=1024, ge=64, le=_MOST, description="Open files of each process.")
    required: bool = Field(
        default=False,
        description="Whether the server is refused where the kernel lacks a part of the sandbox; otherwise it starts "
        "without that part, and the log and `doctor` say so.",
    )


def _expand(value: Any) -> Any:
    if isinstance(value, str) and value not in _PRESETS:
        raise ValueError(f"neither a preset nor a mapping; {suggest(value, _PRESETS)}")
    if isinstance(value, str):
        return _PRESETS[value]
    if value is not None and not isinstance(value, dict | Sandbox):
        raise ValueError(
            f"found {describe_kind(value)}, expected {', '.join(f'`{name}`' for name in _PRESETS)} or a mapping"
        )
    return value  # pyright: ignore[reportUnknownVariableType]


SandboxSetting = Annotated[
    Sandbox | None,
    BeforeValidator(_expand, json_schema_input_type=Literal["off", "no-network", "strict"] | Sandbox | None),
]
"""A sandbox, or the name of a preset in its place; None is no sandbox."""

"""Writing what `config import` has read: the configuration, and files for the secrets in it.

Owns the files, their modes, and that nothing is overwritten by accident.
"""

import os
import secrets as random
import shlex
from contextlib import suppress
from pathlib import Path

import click

from tarsy_tasks.cli.output import counted, dump_json, notes
from tarsy_tasks.config import check_secrets, describe_unused
from tarsy_tasks.config.importing import ImportedConfig, import_config
from tarsy_tasks.errors import ConfigError

__all__ = ["write_import"]

_OWN = 0o600
_READABLE = 0o644


def write_import(path: Path, output: Path | None, secrets: str, *, force: bool) -> None:
    """Import a file.

    Args:
        path: The file of a client.
        output: The file to write; None: print it.
        secrets: `keep`, `env` or `files`.
        force: Replace files that exist.

    Raises:
        ConfigError: The file is wrong, or a file exists or cannot be written.
        click.UsageError: There is no place for the secrets.
    """
    if output is None:
        if secrets != "keep":
            raise click.UsageError(f"--secrets {secrets} writes a file beside OUTPUT: name it with -o")
        click.echo(dump_json(import_config(path).data, indent=2))
        _tell(path, check=path)
        return
    output = output.absolute()
    folder, env_file = output.with_name(f"{output.stem}.secrets"), output.with_name(f"{output.stem}.env")
    files: dict[Path, str] = {}
    match secrets:
        case "env":
            imported = import_config(path, lambda name: f"${{{name}}}")
            if imported.secrets or imported.missing:
                files[env_file] = _write_variables(imported)
        case "files":
            imported = import_config(path, lambda name: f"${{file:{folder / name.lower()}}}")
            files |= {folder / name.lower(): value for name, value in imported.secrets.items()}
        case _:
            imported = import_config(path)
    text = dump_json(imported.data, indent=2) + "\n"
    if not force and (existing := [each for each in (*files, output) if os.path.lexists(each)]):
        raise ConfigError(f"{existing[0]}: exists already; nothing was written. Use --force to replace it")
    try:
        if secrets == "files" and files:
            folder.mkdir(mode=0o700, exist_ok=True)
        for each, content in files.items():
            _write(each, content, _OWN)
        _write(output, text, _OWN if secrets == "keep" and check_secrets(path) else _READABLE)
    except OSError as error:
        raise ConfigError(f"{error.filename or output}: cannot be written: {error.strerror}") from None
    _tell(path, check=output)
    written = counted(len(imported.data["mcpServers"]), "server")  # pyright: ignore[reportArgumentType]
    notes.print(f"{output}: written, {written}", soft_wrap=True)
    if env_file in files:
        moved, missing = counted(len(imported.secrets), "secret"), counted(len(imported.missing), "variable")
        notes.print(f"{env_file}: {moved}, {missing} to fill in")
        notes.print(f"before a worker starts: set -a; . {shlex.quote(str(env_file))}; set +a")
    elif files:
        notes.print(f"{folder}: {counted(len(files), 'secret')}, a file each")


def _tell(path: Path, check: Path) -> None:
    for line in describe_unused(path):
        notes.print(line)
    for exposure in check_secrets(check):
        notes.print(f"warning: {exposure}", style="yellow")


def _write_variables(imported: ImportedConfig) -> str:
    lines = [f"{name}={shlex.quote(value)}" for name, value in imported.secrets.items()]
    if imported.missing:
        lines += ["# Set these here or elsewhere:", *(f"#{name}=" for name in imported.missing)]
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file as a whole; what was there before is replaced, also a link."""
    new = path.with_name(f".{path.name}.{random.token_hex(4)}")
    try:
        with open(new, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(text)
        new.replace(path)
    finally:
        with suppress(OSError):
            new.unlink()

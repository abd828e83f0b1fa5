"""What the commands that ask servers have in common: their executor, and pairs of name and value."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import tarsy_tasks

if TYPE_CHECKING:
    from tarsy_tasks import ToolExecutor

__all__ = ["build_executor", "read_pairs"]


def build_executor(timeout_s: float, servers: Sequence[str] | None = None) -> "ToolExecutor":
    """An executor of these servers, or of all.

    Raises:
        UsageError: The timeout is no usable number.
    """
    from tarsy_tasks import ToolExecutor

    try:
        return ToolExecutor(servers, timeout_s=timeout_s, app=tarsy_tasks.app)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def read_pairs(words: tuple[str, ...], what: str) -> dict[str, str]:
    """`NAME=VALUE` words.

    Args:
        what: What each of them is, for the error.

    Raises:
        UsageError: One has no `=`.
    """
    pairs = [word.partition("=") for word in words]
    if wrong := [name for name, separator, _ in pairs if not separator]:
        raise click.UsageError(f"{what} is NAME=VALUE, not {wrong[0]!r}")
    return {name: value for name, _, value in pairs}

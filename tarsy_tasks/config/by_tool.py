"""What a configuration says of single tools, by name or glob."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

__all__ = ["find_for_tool"]

T = TypeVar("T")


def find_for_tool(tool: str, said: Mapping[str, T]) -> T | None:
    """What is said of a tool: by its name, or else by the first glob that matches; None if nothing is."""
    if tool in said:
        return said[tool]
    return next((found for glob, found in said.items() if fnmatchcase(tool, glob)), None)

"""The syntax trees of Python files."""

import ast
from contextlib import suppress
from pathlib import Path

__all__ = ["parse"]

_ATTEMPTS = 20


def parse(path: Path) -> ast.Module:
    """As `ast.parse`, which Python 3.11 fails now and then while another thread formats a traceback: all threads share
    its count of levels."""
    text = path.read_text()
    for _ in range(_ATTEMPTS):
        with suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)

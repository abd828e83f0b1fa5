"""Script and style of the pages.

Owns where they lie and which version of them an address names, so that browsers may keep them for ever.
"""

import hashlib
from functools import cache
from pathlib import Path

__all__ = ["STATIC_PATH", "asset_version"]

STATIC_PATH = Path(__file__).parent / "static"


@cache
def asset_version(name: str) -> str:
    """Of one file: another one whenever it has changed."""
    return hashlib.sha256((STATIC_PATH / name).read_bytes()).hexdigest()[:12]

"""The README as package indexes show it. They know no other file of the repository.

Its relative links lead to the `Repository` of `project.urls`. As long as the project has no public address, they are
the plain names of the files, which the source distribution contains.
"""

import re
import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_OLDEST = (3, 11)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Fills in `readme`, which `pyproject.toml` lists as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        if sys.version_info < _OLDEST:
            # Before pip looks for versions of the dependencies that fit, and names those as the problem.
            sys.exit(f"tarsy-tasks needs Python 3.11, 3.12 or 3.13; this is Python {sys.version.split()[0]}")
        base = metadata.get("urls", {}).get("Repository")

        def replace(found: re.Match[str]) -> str:
            image, text, target = found.groups()
            if base:
                return f"{image}[{text}]({base}/{'raw' if image else 'blob'}/main/{target})"
            return "" if image else f"{text} (`{target}`)"

        text = _LINK.sub(replace, (Path(self.root) / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}

"""The README as package indexes show it. They know no other file of the repository.

Its relative links lead to the `Repository` of `project.urls`; as long as the project has no public address, they are the
plain names of the files, which the source distribution contains.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Fills in `readme`, which `pyproject.toml` lists as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        base = metadata.get("urls", {}).get("Repository")

        def replace(found: re.Match[str]) -> str:
            image, text, target = found.groups()
            if base:
                return f"{image}[{text}]({base}/{'raw' if image else 'blob'}/main/{target})"
            return "" if image else f"{text} (`{target}`)"

        text = _LINK.sub(replace, (Path(self.root) / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}

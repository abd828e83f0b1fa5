"""What the site adds to the pages of this folder: two pages from elsewhere, figures, and links that leave the folder.

The pages are also read in the repository, where a link may lead to any file. On the site such a link leads to the
repository if `repo_url` in mkdocs.yml says where that is; otherwise it is the name of the file.
"""

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[1]
_FROM_ELSEWHERE = {"CHANGELOG.md": "changelog.md", "benchmarks/README.md": "benchmarks.md", "README.md": "README.md"}
"""Files of the repository that the site has, and under which name. In place of the README it has its home page."""
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?://|#)([^)\s#]+)(#[^)\s]*)?\)")
_FIGURES = re.compile(r"<!-- table of benchmarks: (.+) -->")
_CODE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are kept elsewhere."""
    for source, name in _FROM_ELSEWHERE.items():
        if name not in files.src_uris:
            files.append(File.generated(config, name, content=(_ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Turns links that leave the folder into links that the site has."""
    at_home = {name: source for source, name in _FROM_ELSEWHERE.items() if name != "README.md"}
    page_uri = page.file.src_uri
    if page.parent is None:
        page.meta["hide"] = ["navigation"]  # that of a page without a section has one entry
    folder = dirname(at_home.get(page_uri, f"docs/{page_uri}"))

    def replace(found: re.Match[str]) -> str:
        text, target, anchor = found[1], normpath(f"{folder}/{found[2]}"), found[3] or ""
        name = _FROM_ELSEWHERE.get(target) or target.removeprefix("docs/")
        if target.startswith("docs/") or target in _FROM_ELSEWHERE:
            return f"[{text}]({relpath(name, dirname(page_uri) or '.')}{anchor})"
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{target})"
        name = f"`{target}`"
        return name if text.strip("`") == target else f"{text} ({name})"

    markdown = _FIGURES.sub(lambda found: _read_table(found[1]), markdown)
    # Code is left as it is.
    parts = _CODE.split(markdown)
    return "".join(part if index % 2 else _LINK.sub(replace, part) for index, part in enumerate(parts))


def _read_table(heading: str) -> str:
    """The first table below a heading of the benchmarks' page, and when it was recorded."""
    page = (_ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    table = re.compile(r"(?:^\|.*\n)+", re.MULTILINE).search(page, page.find(f"# {heading}\n") % len(page))
    recorded = re.findall(r"^Recorded .+$", page[: table.start()], re.MULTILINE) if table else []
    if table is None or not recorded:
        raise PluginError(f"benchmarks/README.md has no table below the heading {heading!r}")
    return f"{table[0]}\n{recorded[-1]}"

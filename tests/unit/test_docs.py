"""The pages for readers: their links lead somewhere, the index is complete, README and glossary stay short."""

import re
from pathlib import Path

import pytest

from tarsy_tasks.broker import keys
from tarsy_tasks.config.record import CONFIGURATION_KEY, HISTORY_KEY

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")])
_NOT_TEXT = re.compile(r"^```.*?^```$|`[^`\n]+`|<!--.*?-->", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(r"`([\w./-]+\.py)`")
_SHOWN = re.compile(r'^```\w+ title="(.+)"$', re.MULTILINE)
"""Files that readers write themselves."""
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def links(page: Path) -> list[str]:
    """The targets of a page's links within the project."""
    targets: list[str] = _LINK.findall(_NOT_TEXT.sub("", page.read_text()))
    return [target for target in targets if not target.startswith(("https://", "http://"))]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_resolve(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_code_files_that_the_docs_name_exist() -> None:
    for page in DOCS.rglob("*.md"):
        text = page.read_text()
        for name in set(_FILE.findall(text)) - {"flowerconfig.py", *_SHOWN.findall(text)}:
            assert any((root / name).is_file() for root in (ROOT, ROOT / "tarsy_tasks")), f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_blank_line_splits_a_table(page: Path) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", _NOT_TEXT.sub("x", page.read_text() + "\n"), re.MULTILINE)
    for table in tables:
        assert re.match(r"\|.*\n\|[ :|-]+\|\n", table), table.partition("\n")[0]


def test_the_index_lists_every_page() -> None:
    listed = {(DOCS / link).resolve() for link in links(DOCS / "README.md")}
    assert set(PAGES) - {DOCS / "README.md"} <= listed


def test_readme_and_glossary_stay_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 6000
    terms = re.findall(r"^\| (?!term |---)", (DOCS / "glossary.md").read_text(), flags=re.MULTILINE)
    assert 0 < len(terms) <= 40


def test_the_page_of_messages_lists_every_key() -> None:
    section = (DOCS / "protocol.md").read_text().partition("\n## Keys in Redis\n")[2]
    cells = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    listed = {name.partition("<")[0] for cell in cells for name in re.findall(r"`(.+?)`", cell)}
    spelled = set(re.findall(r'"(tarsy:[\w:-]+)', Path(keys.__file__).read_text())) | {CONFIGURATION_KEY, HISTORY_KEY}
    assert listed == spelled - {keys.REPLIES, keys.EVENTS, keys.SERVER_EVENTS}  # channels

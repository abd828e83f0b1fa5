"""The blocks of code in the pages for readers, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCS", "PAGES", "ROOT", "Block", "name_of", "read_blocks", "read_commands"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "benchmarks" / "README.md"])

_BLOCK = re.compile(
    r'(?:^<!-- (?P<note>[^\n]+) -->\n+)?^```(?P<language>\w*)(?: title="(?P<title>[^"\n]+)")?\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_ENDS_OF_A_COMMAND = {"&&", "||", "|", ";", "--", ">", "<"}
_ASSIGNMENT = re.compile(r"[A-Z_]+=.*")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        note: The comment right above it. `not run: …` says why no test runs it.
        line: Of its first line of code, so that a traceback names the line of the page.
    """

    language: str
    title: str
    note: str
    code: str
    line: int

    @property
    def is_run(self) -> bool:
        return not self.note.startswith("not run: ")

    @property
    def on_its_lines(self) -> str:
        """Its code, on the lines of the page."""
        return "\n" * (self.line - 1) + self.code


def name_of(page: Path) -> str:
    """As links in README.md at the top write it."""
    return str(page.relative_to(ROOT))


def read_blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found["language"],
            found["title"] or "",
            found["note"] or "",
            found["code"],
            text.count("\n", 0, found.start("code")) + 1,
        )
        for found in _BLOCK.finditer(text)
    ]


def read_commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block for a shell: their words, without variables that are set for them."""
    code = block.code
    if block.language == "console":
        code = "".join(line.removeprefix("$ ") for line in code.splitlines(keepends=True) if line.startswith("$ "))
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word in _ENDS_OF_A_COMMAND:
                if words:
                    yield words
                words = []
            elif words or not _ASSIGNMENT.fullmatch(word):
                words.append(word)

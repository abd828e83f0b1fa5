"""What a benchmark has found, as Markdown: printed, and put into README.md with `--write`.

Owns the options that all benchmarks have, and the blocks of README.md that hold their figures.
"""

import argparse
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "benchmarks" / "README.md"


def build_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--smoke", action="store_true", help="only show that it works, in seconds, with tiny sizes")
    parser.add_argument("--write", action="store_true", help="put the figures into benchmarks/README.md")
    return parser


def read_commit() -> str:
    """The last commit of the package. Ends the benchmark if the package is not as committed."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    if git("status", "--porcelain", "--", "tarsy_tasks"):
        raise SystemExit("figures are recorded of a commit: commit what you have changed in tarsy_tasks")
    return git("log", "-1", "--format=%h", "--", "tarsy_tasks")


class Report:
    """The figures of one benchmark.

    Args:
        name: Of the script, and of its block in README.md.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._parts: list[str] = []

    def add_heading(self, text: str) -> None:
        self._parts.append(f"### {text}")
        print(f"\n{text}\n")

    def add_table(self, head: Sequence[str], rows: Iterable[Sequence[str | float]]) -> None:
        """A table; numbers get three digits."""
        lines = [head, ["---"] * len(head), *([_format(cell) for cell in row] for row in rows)]
        self._add("\n".join(f"| {' | '.join(line)} |" for line in lines))

    def add_list(self, *lines: str) -> None:
        self._add("\n".join(f"- {line}" for line in lines))

    def _add(self, part: str) -> None:
        *_, last = part.splitlines()
        assert re.search(r"\d", last), f"no figures: {last}"
        assert not re.search(r"\b(nan|inf)\b", part), part
        self._parts.append(part)
        print(part, "", sep="\n", flush=True)

    def finish(self, options: argparse.Namespace) -> None:
        """Replace the block of README.md between the markers of this benchmark, if that was asked for."""
        if not options.write:
            return
        recorded = (
            f"Recorded on {datetime.now(UTC):%Y-%m-%d} at commit {read_commit()}, "
            f"{os.cpu_count()} cores, Python {platform.python_version()}."
        )
        begin, end = f"<!-- figures of {self._name} -->\n", f"<!-- end of {self._name} -->"
        head, _, rest = README.read_text().partition(begin)
        _, _, tail = rest.partition(end)
        assert tail, f"README.md has no {begin}"
        README.write_text(head + begin + "\n\n".join([recorded, *self._parts]) + "\n" + end + tail)


def _format(cell: str | float) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:#.3g}"

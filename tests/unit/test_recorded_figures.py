"""The figures that the benchmarks wrote down are those of this code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
RECORDED: dict[str, Any] = json.loads((BENCHMARKS / "recorded.json").read_text())
COUNTS: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "data" / "call_counts.json").read_text())


def flatten(counts: dict[str, Any]) -> dict[str, float]:
    """Numbers by a name that is a path."""
    found: dict[str, float] = {}
    for name, value in counts.items():
        inner = flatten(value) if isinstance(value, dict) else {"": value}
        found |= {f"{name}/{rest}".rstrip("/"): number for rest, number in inner.items()}
    return found


def test_figures_are_of_calls_that_cost_what_they_cost_now() -> None:
    now = flatten(COUNTS)
    assert flatten(RECORDED["counts"]) == pytest.approx(now, rel=0.05), (
        "calls have become cheaper or dearer since the figures in benchmarks/README.md were recorded: run "
        "`python benchmarks/calls.py --rounds 21 --write` on a machine that does nothing else"
    )


def test_the_page_shows_what_is_recorded() -> None:
    page = (BENCHMARKS / "README.md").read_text()
    [commit] = re.findall(r"<!-- figures of calls -->\nRecorded on [\d-]+ at commit (\w+)", page)
    assert commit == RECORDED["commit"]


def test_each_benchmark_has_a_block_of_figures() -> None:
    page = (BENCHMARKS / "README.md").read_text()
    scripts = {path.stem for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text()}
    blocks = re.findall(r"<!-- figures of (\w+) -->\nRecorded .+?\n<!-- end of (\w+) -->", page, re.DOTALL)
    assert {(script, script) for script in scripts} == set(blocks)

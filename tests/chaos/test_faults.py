"""The short form of every fault: short leases, short faults, 64 calls in flight. `python -m tests.chaos` is the long
one.
"""

import os
from collections.abc import Iterator

import pytest

from tests.chaos.rows import ROWS, Row, Theatre
from tests.chaos.stage import SHORT, can_fake_clocks


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    with Theatre(SHORT, tmp_path_factory.mktemp("chaos")) as theatre:
        yield theatre
        assert theatre.clear() == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_call_under_a_fault_has_one_truthful_answer(theatre: Theatre, row: Row) -> None:
    if row.cast.clocks and not can_fake_clocks() and not os.environ.get("CI"):
        pytest.skip("there is no libfaketime on this machine: apt-get install faketime")
    tally = theatre.play(row)
    assert not tally.findings, f"{row.fault}: {tally}"

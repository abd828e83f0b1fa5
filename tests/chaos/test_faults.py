"""The short form of the faults of a whole deployment: short leases, short faults, 64 calls in flight. `python -m
tests.chaos` is the long one of every fault.
"""

import pytest

from tests.chaos.rows import ROWS, Row, Theatre


@pytest.mark.parametrize("row", [row for row in ROWS if row.cast.is_plain], ids=lambda row: row.name)
def test_every_call_under_a_fault_has_one_truthful_answer(theatre: Theatre, row: Row) -> None:
    tally = theatre.play(row)
    assert not tally.findings, f"{row.fault}: {tally}"

"""The short form of the other faults: of the network and of clocks, and those that need no beat and no Flower. It is a
module of its own to run beside the first one.
"""

import os

import pytest

from tests.chaos.rows import ROWS, Row, Theatre
from tests.chaos.stage import can_fake_clocks


@pytest.mark.parametrize("row", [row for row in ROWS if not row.cast.is_plain], ids=lambda row: row.name)
def test_every_call_under_a_fault_has_one_truthful_answer(theatre: Theatre, row: Row) -> None:
    if row.cast.clocks and not can_fake_clocks() and not os.environ.get("CI"):
        pytest.skip("there is no libfaketime on this machine: apt-get install faketime")
    tally = theatre.play(row)
    assert not tally.findings, f"{row.fault}: {tally}"

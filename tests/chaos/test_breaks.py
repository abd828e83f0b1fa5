"""The table of what can be taken out follows the package. `python -m tests.chaos.breaks` plays it."""

import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.chaos.breaks import BREAKS, COUNTS, ROOT, Break
from tests.chaos.rows import ROWS


@pytest.mark.parametrize("each", BREAKS, ids=lambda each: f"{each.row}: {each.mechanism}")
def test_each_mechanism_can_be_taken_out(each: Break, tmp_path: Path) -> None:
    path = tmp_path / "tarsy_tasks" / each.file
    path.parent.mkdir(parents=True)
    shutil.copy(ROOT / "tarsy_tasks" / each.file, path)
    each.apply(tmp_path)
    module = path.relative_to(tmp_path).with_suffix("")
    spec = spec_from_file_location(".".join(module.parts), path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))


def test_each_row_has_a_mechanism_that_can_be_taken_out() -> None:
    assert {row.name for row in ROWS} | {COUNTS} == {each.row for each in BREAKS}

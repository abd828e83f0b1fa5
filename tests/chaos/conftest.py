"""A theatre per module: modules can run at the same time."""

from collections.abc import Iterator

import pytest

from tests.chaos.rows import Theatre
from tests.chaos.stage import SHORT


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    with Theatre(SHORT, tmp_path_factory.mktemp("chaos")) as theatre:
        yield theatre
        assert theatre.clear() == []

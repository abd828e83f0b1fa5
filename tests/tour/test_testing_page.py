"""docs/testing.md as a reader uses it: its code in files of a project of their own, run by pytest."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_code_of_the_page_on_testing_runs(tmp_path: Path) -> None:
    stub, conftest, stack = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_stub.py").write_text(stub)
    (tmp_path / "test_stack.py").write_text(stack)
    (tmp_path / "test_scripted.py").write_text(
        "def test_the_fixture_runs(scripted_server):\n    assert scripted_server.url\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "6 passed" in run.stdout, run.stdout + run.stderr

"""What holds for all tests: short names, no sleeps, no patches."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
LONGEST_NAME = 60


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Every node of every file with tests, with where it stands."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield f"{path.relative_to(TESTS)}:{getattr(node, 'lineno', 0)}", node


def test_the_names_of_tests_are_short() -> None:
    functions = ((where, node.name) for where, node in nodes() if isinstance(node, ast.FunctionDef))
    assert [each for each in functions if each[1].startswith("test_") and len(each[1]) > LONGEST_NAME] == []


def test_no_test_sleeps_or_patches() -> None:
    found: list[str] = []
    for where, node in nodes():
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
                found.append(f"{where} sleeps")
            case ast.Attribute(value=ast.Name(id="monkeypatch" | "patch"), attr="setattr" | "setitem"):
                found.append(f"{where} patches")
            case ast.Import(names=[ast.alias(name="unittest.mock"), *_]) | ast.ImportFrom(module="unittest.mock"):
                found.append(f"{where} imports mock")
            case _:
                pass
    assert found == []

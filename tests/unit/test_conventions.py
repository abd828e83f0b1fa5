"""What holds for all tests: short names, no sleeps, no patches."""

import ast
from functools import cache
from pathlib import Path

from tests.source import parse

TESTS = Path(__file__).parents[1]
LONGEST_NAME = 60
MOST_LINES = 400


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of every file with tests, with its place."""
    files = {str(path.relative_to(TESTS)): parse(path) for path in sorted(TESTS.rglob("test_*.py"))}
    return [(f"{file}:{getattr(node, 'lineno', 0)}", node) for file, tree in files.items() for node in ast.walk(tree)]


def test_files_of_tests_are_short() -> None:
    sizes = {str(path.relative_to(TESTS)): path.read_text().count("\n") for path in TESTS.rglob("*.py")}
    assert {file: size for file, size in sizes.items() if size > MOST_LINES} == {}


def test_the_names_of_tests_are_short() -> None:
    functions = (
        (where, node.name) for where, node in nodes() if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert [each for each in functions if each[1].startswith("test_") and len(each[1]) > LONGEST_NAME] == []


def test_no_test_sleeps_or_patches() -> None:
    found: list[str] = []
    for where, node in nodes():
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
                found.append(f"{where} sleeps")
            # Without a delay it only lets other tasks go first.
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio" | "anyio"), attr="sleep"), args=[delay]):
                if not (isinstance(delay, ast.Constant) and delay.value == 0):
                    found.append(f"{where} sleeps")
            case ast.Attribute(value=ast.Name(id="monkeypatch" | "patch"), attr="setattr" | "setitem"):
                found.append(f"{where} patches")
            case ast.Import(names=[ast.alias(name="unittest.mock"), *_]) | ast.ImportFrom(module="unittest.mock"):
                found.append(f"{where} imports mock")
            case _:
                pass
    assert found == []

"""Modules are short, and imports run down: no circles, and no arrow up between the folders; lazy imports and those for
types count."""

import ast
import statistics
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import tarsy_tasks
from tests.source import parse

PACKAGE = Path(tarsy_tasks.__file__).parent
FLOORS = (
    {"cli", "adapters"},
    {"demo", "doctor", "testing"},
    {"__init__"},
    {"entry_point"},
    {"dashboard"},
    {"agent", "worker.process", "scheduler"},
    {"worker.calls"},
    {"worker.reporting"},
    {"worker.sessions"},
    {"worker.transport"},
    {"worker.maskers", "worker.long_work"},
    {"worker.time_budget", "worker.masking_process"},
    {"health", "operators", "server_status"},
    {"catalogue"},
    {"celery_app"},
    {"telemetry", "oauth"},
    {"broker", "policy"},
    {"config"},
    {"run_dir"},
    {"settings"},
    {"interceptors", "credential_providers", "call_events", "server_events", "native"},
    {"resources", "prompts"},
    {"models", "input_answers"},
    {"tool_names", "arguments"},
    {"errors"},
    {"outcomes", "priorities", "methods", "questions"},
    {"masking", "own_files", "secret_files", "file_rights", "event_loop"},
)
"""From top to bottom. What shares a floor does not import each other."""
MOST_LINES = 400
USUAL_LINES = 130


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a module imports anywhere in its text."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            parent = (node.module or "").removeprefix("tarsy_tasks").removeprefix(".")
            if (node.module or "").split(".")[0] == "tarsy_tasks":
                for name in node.names:
                    inner = f"{parent}.{name.name}".removeprefix(".")
                    yield inner if inner in known else parent or "__init__"
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name == "tarsy_tasks":
                    continue  # its public names, which are loaded when they are used
                assert name.name.split(".")[0] != "tarsy_tasks", f"{path}: import {name.name}"


def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: set(imports(path, known)) - {name} for name, path in known.items()}


def room(module: str) -> str:
    """The part of the package that a module belongs to: a folder, a floor of the worker, or a module at the top."""
    first, _, rest = module.partition(".")
    return f"worker.{rest.partition('.')[0]}" if first == "worker" and rest else first


def test_no_module_is_in_an_import_circle() -> None:
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' → '.join(error.args[1])}") from None


def test_imports_run_down_the_floors() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    rooms = {(room(module), room(imported)) for module, found in graph().items() for imported in found}
    unknown = {name for pair in rooms for name in pair} - floor.keys() - {"worker"}
    assert not unknown, "a part of the package without a floor"
    up = sorted(pair for pair in rooms if pair[0] != pair[1] and floor[pair[0]] >= floor[pair[1]])
    assert not up, f"imports that do not run down: {up}"


def test_modules_are_short() -> None:
    sizes = {name: path.read_text().count("\n") for name, path in modules().items()}
    assert {name: size for name, size in sizes.items() if size > MOST_LINES} == {}
    assert statistics.median(sizes.values()) <= USUAL_LINES

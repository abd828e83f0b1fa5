"""Flower's own list of tasks: tool calls under the names of their tools, with their outcomes, without arguments.

Owns how a task of ours is shown, the search that finds it under its tool's name, and which events Flower stores: those
of a producer may hold arguments, and Flower shows and searches events at many places. What Flower stores of a task is
not renamed: its metrics would get a series per tool.
"""

import re
from collections.abc import Mapping
from typing import Any

from flower.events import Events
from flower.views.tasks import TasksDataTable

from tarsy_tasks.broker.task_names import CALL_TOOL, CALLS, CHECK_SERVER, LIST_TOOLS

__all__ = ["COLUMNS", "CallEvents", "CallsTable", "format_task", "widen_search", "without_arguments"]

COLUMNS = "name,result,state,received,runtime,worker,uuid"
"""Flower's `tasks_columns`, with the outcome next to the name."""
_OURS = frozenset({*CALLS, LIST_TOOLS, CHECK_SERVER})
_RESULT = re.compile(r"<.*: (?P<outcome>[a-z_]+(?: [A-Z_]+)?), \d+ characters, ", re.DOTALL)
"""The `repr` of a `ToolResult`, as events hold it."""
_TERM = re.compile(r'(?:\\["\\]|"(?:\\["\\]|[^"\\]|\\(?!["\\]))*"|[^\s()"\\]|\\(?!["\\]))+')
"""A search term as Flower parses it: quoted phrases belong to it."""
_NAME = re.compile(r'^("?)name:', re.IGNORECASE)


def format_task(task: Any) -> Any:
    """A task as Flower shows it. Workers put the name of the tool in place of the arguments."""
    found = _RESULT.match(task.result or "") if task.name in (*CALLS, None) else None
    if task.name in CALLS or found:  # a task that began before Flower has no name
        task.is_mcp_call = True
        task.name = task.args or task.name or CALL_TOOL
        task.result = found["outcome"] if found else task.result
        task.args = task.kwargs = "not shown"
    elif task.name == LIST_TOOLS:
        task.name = f"{task.args}: list of tools" if task.args else LIST_TOOLS
        task.args = task.kwargs = "not shown"
    return task


def widen_search(query: str) -> str:
    """A search of Flower that also looks for names where workers put the names of tools."""

    def widen(found: re.Match[str]) -> str:
        term = found[0]
        widened, count = _NAME.subn(r"\1args:", term)
        return f"({term} OR {widened})" if count else term

    return _TERM.sub(widen, query)


class CallsTable(TasksDataTable):
    """Flower's data of the list, searched and sorted by the names of tools."""

    def get_argument(self, name: str, *args: Any, **kwargs: Any) -> Any:
        value = super().get_argument(name, *args, **kwargs)
        if name == "search[value]" and isinstance(value, str):
            return widen_search(value)
        if re.fullmatch(r"columns\[\d+\]\[data\]", name) and value == "name":
            return "args"
        return value


class CallEvents(Events):
    """Flower's event store, without the arguments that producers send with our tasks."""

    def on_event(self, event: Mapping[str, Any]) -> None:
        super().on_event(without_arguments(event))


def without_arguments(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event as Flower may store it."""
    is_ours = event.get("type") == "task-sent" and event.get("name") in _OURS
    return {key: value for key, value in event.items() if not (is_ours and key in ("args", "kwargs"))}

"""Flower's own list of tasks: tool calls under the names of their tools, with their outcomes, without arguments.

Owns how Flower's `format_task` shows a task of ours, and the search that finds it under that name. What Flower keeps of
a task stays as it is, its metrics too: there a name for each tool would be a series for each tool.
"""

import re
from typing import Any

from flower.views.tasks import TasksDataTable

from tarsy_tasks.broker.task_names import CALL_TOOL, LIST_TOOLS

__all__ = ["COLUMNS", "CallsTable", "format_task", "widen_search"]

COLUMNS = "name,result,state,received,runtime,worker,uuid"
"""Flower's `tasks_columns`: with the outcome beside the name."""
_RESULT = re.compile(r"<.*: (?P<ending>[a-z_]+(?: [A-Z_]+)?), \d+ characters, ", re.DOTALL)
"""How a `ToolResult` shows itself in events."""
_TERM = re.compile(r'(?:\\["\\]|"(?:\\["\\]|[^"\\]|\\(?!["\\]))*"|[^\s()"\\]|\\(?!["\\]))+')
"""A term of a search, as Flower reads it: phrases in quotes are a part of it."""
_NAME = re.compile(r'^("?)name:', re.IGNORECASE)


def format_task(task: Any) -> Any:
    """How Flower shows a task. Workers put the name of the tool where its arguments would be."""
    found = _RESULT.match(task.result or "") if task.name in (CALL_TOOL, None) else None
    if task.name == CALL_TOOL or found:  # one that began before Flower did has no name
        task.is_mcp_call = True
        task.name = task.args or CALL_TOOL
        task.result = found["ending"] if found else task.result
        task.args = task.kwargs = "not shown"
    elif task.name == LIST_TOOLS:
        task.name = f"{task.args}: list of tools" if task.args else LIST_TOOLS
        task.args = task.kwargs = "not shown"
    return task


def widen_search(query: str) -> str:
    """A search of Flower's that looks for names where workers put the tools' names, too."""

    def widen(found: re.Match[str]) -> str:
        term = found[0]
        there, count = _NAME.subn(r"\1args:", term)
        return f"({term} OR {there})" if count else term

    return _TERM.sub(widen, query)


class CallsTable(TasksDataTable):
    """Flower's data of the list: a name is looked for where workers put the tools' names, too."""

    def get_argument(self, name: str, *args: Any, **kwargs: Any) -> Any:
        value = super().get_argument(name, *args, **kwargs)
        if name == "search[value]" and isinstance(value, str):
            return widen_search(value)
        if re.fullmatch(r"columns\[\d+\]\[data\]", name) and value == "name":
            return "args"
        return value

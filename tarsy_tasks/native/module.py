"""The tools of a module: its marked functions."""

import traceback
from importlib import import_module

from tarsy_tasks.native.mark import find_mark
from tarsy_tasks.native.tool import NativeTool, build_native_tool

__all__ = ["load_tools"]


def load_tools(server: str, module: str) -> dict[str, NativeTool]:
    """The marked functions of a module, by the names of the tools.

    Args:
        server: Id of the server.
        module: Its import path. A marked function that it has imported counts, too.

    Raises:
        ValueError: The module cannot be imported, has no such function, or one that cannot be a tool.
    """
    try:
        found = import_module(module)
    except BaseException as error:  # SystemExit, too: it would end the program without a message
        what = f"{type(error).__name__}: {error}{_find_place(error)}"
        raise ValueError(f"`{module}` cannot be imported: {what}") from error
    functions = {id(each): each for each in vars(found).values() if callable(each) and find_mark(each)}
    if not functions:
        raise ValueError(f"`{module}` has no tools: mark its functions with `@tarsy_tasks.native_tool`")
    tools: dict[str, NativeTool] = {}
    for function in functions.values():
        tool = build_native_tool(function, server)
        if tools.setdefault(tool.definition.tool, tool) is not tool:
            raise ValueError(f"`{module}` has two tools with the name `{tool.definition.tool}`")
    return tools


def _find_place(error: BaseException) -> str:
    """Where in the code that was imported something failed; empty if that is not known."""
    frames = [each for each in traceback.extract_tb(error.__traceback__)[1:] if not each.filename.startswith("<frozen")]
    frames = [each for each in frames if "importlib" not in each.filename]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""

from tarsy_tasks.errors import ToolNameError
from tarsy_tasks.outcomes import ErrorCode


def resolve_server(name, servers):
    s, _, t = name.partition(".") if "." in name else name.partition("__")
    if not s or not t:
        raise ToolNameError(ErrorCode.INVALID_NAME, f"{name} is no name")
    if s not in servers:
        raise ToolNameError(ErrorCode.UNKNOWN_SERVER, f"no server {s}; there are {list(servers)}")
    return s, t


def resolve_tool_name(name, catalogue):
    s, t = resolve_server(name, catalogue)
    if t not in catalogue[s]:
        raise ToolNameError(ErrorCode.UNKNOWN_TOOL, f"no tool {t}; there are {sorted(catalogue[s])}")
    return s, t

"""Tool calls in a Celery chain, group and chord. Start `tarsy-tasks up` first, and set the
variable that it prints for agents.

python examples/canvas.py SERVER.TOOL '{"argument": "value"}'
"""

import sys

from celery import chain, chord, group

from tarsy_tasks import ToolResult, tool_signature


def main() -> None:
    call = tool_signature(sys.argv[1], sys.argv[2])
    print("chain", ToolResult.model_validate(chain(call, call).delay().get(timeout=30)))
    print("group", [ToolResult.model_validate(result) for result in group(call, call, call).delay().get(timeout=30)])
    print("chord", ToolResult.model_validate(chord([call, call], call).delay().get(timeout=30)))


if __name__ == "__main__":
    main()

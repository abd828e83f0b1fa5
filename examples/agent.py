"""A synchronous agent: list the tools, call one, print the result. Start `tarsy-tasks up` first, and set the
variable that it prints for agents.

python examples/agent.py SERVER.TOOL '{"argument": "value"}'
"""

import sys

from tarsy_tasks import ToolExecutor


def main() -> None:
    name, arguments = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "{}"
    with ToolExecutor(timeout_s=30, agent_id="example") as tools:
        print(tools.list_tools().prompt_section())
        result = tools.execute(name, arguments)
    print(f"\n{result.outcome} {result.error_code or ''}\n{result.content}")


if __name__ == "__main__":
    main()

"""An asyncio agent: make many calls at once, count how they ended. Start `tarsy-tasks up` first, and set the
variable that it prints for agents.

python examples/async_agent.py SERVER.TOOL '{"argument": "value"}' 20
"""

import asyncio
import sys
from collections import Counter

from tarsy_tasks import AsyncToolExecutor


async def main() -> None:
    name, arguments, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    async with AsyncToolExecutor(timeout_s=30, agent_id="example") as tools:
        results = await tools.execute_many([(name, arguments)] * count)
    print(Counter(result.outcome.value for result in results))


if __name__ == "__main__":
    asyncio.run(main())

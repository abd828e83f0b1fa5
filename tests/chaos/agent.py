"""An agent in a process of its own, which begins calls, says so, and waits.

`python agent.py REDIS_URL SERVER NAME COUNT WAIT_S [park]`
"""

import sys

from tarsy_tasks import ToolCall, ToolExecutor
from tarsy_tasks.celery_app import build_app


def main(redis_url: str, server: str, name: str, count: str, wait_s: str, park: str = "") -> None:
    app = build_app({"broker_url": redis_url, "result_backend": redis_url})
    tools = ToolExecutor([server], timeout_s=60, park=bool(park), app=app)
    pending = [
        tools.submit(ToolCall(id=key, name=f"{server}.{tool}", arguments={"key": key, "wait_s": float(wait_s)}))
        for number in range(int(count))
        for key, tool in [(f"{name}-{number}", ("look", "renew", "add")[number % 3])]
    ]
    print("all are sent", flush=True)
    for call in pending:
        call.result()


if __name__ == "__main__":
    main(*sys.argv[1:])

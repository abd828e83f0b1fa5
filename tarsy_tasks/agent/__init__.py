"""The half that runs in an agent's process: it enqueues calls and waits for their answers.

`executor` and `async_executor` are what an agent holds, `dispatcher` sends, `reply_listener` receives. No worker
imports this, and nothing in here imports `tarsy_tasks.worker`, `mcp` or, before the first call, `celery`.
"""

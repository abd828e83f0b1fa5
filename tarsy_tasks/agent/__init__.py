"""The half that runs in an agent's process: it enqueues calls and waits for their answers.

`executor` and `async_executor` are what an agent holds, `calls` sends, `replies` receives. Nothing in here is imported
by a worker, and nothing in here imports `tarsy_tasks.worker`, `mcp` or, before the first call, `celery`.
"""

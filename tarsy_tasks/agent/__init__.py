"""The half that runs in an agent's process: it enqueues calls and waits for their answers.

`executor` and `async_executor` are what an agent holds; on the `background` loop, `dispatcher` sends through one
`connection`, and `reply_listener` receives. No worker
imports this, and nothing in here imports `tarsy_tasks.worker`, `mcp` or, before the first call, `celery`.
"""

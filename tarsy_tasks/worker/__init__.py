"""The half that runs in a Celery worker: it holds the MCP sessions and executes the calls.

A plain call, which is the usual case, enters at `process/plain_calls.py`, any other at `calls/tasks.py`.
`process/pool.py` owns the event loop, `sessions/connection.py` the sessions with a server, `transport/` what lies below
them. `long_work` has threads for large values, `maskers` the masker of each server, `time_budget` what a server may
cost. Nothing in here is imported by an agent, and nothing in here imports `tarsy_tasks.agent`.
"""

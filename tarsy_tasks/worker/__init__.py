"""The half that runs in a Celery worker: it holds the MCP sessions and executes the calls.

`calls/tasks.py` is where a call enters, `process/pool.py` owns the event loop, `sessions/connection.py` the sessions
with a server, `transport/` what lies below them. Nothing in here is imported by an agent, and nothing in here imports
`tarsy_tasks.agent`.
"""

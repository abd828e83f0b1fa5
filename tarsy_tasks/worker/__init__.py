"""The half that runs in a Celery worker: it holds the MCP sessions and executes the calls.

`tasks` is where a call enters, `pool` owns the event loop, `connection` the way to a server, `transport/` what lies
below it. Nothing in here is imported by an agent, and nothing in here imports `tarsy_tasks.agent`.
"""

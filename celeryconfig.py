"""Celery settings of this deployment: workers, beat and the command line read this file from their working directory.

The package has safe defaults; settings in this file override them. Any Celery setting can be set, by its lower-case
name. The address of Redis comes from TARSY_REDIS_URL.
"""

# Calls that one worker process runs at once. They wait on threads: use up to 512, then start more processes.
worker_concurrency = 256

# Seconds that running calls get after SIGQUIT (or a second Ctrl-C), before they are cancelled at the MCP server.
worker_soft_shutdown_timeout = 10.0

# Seconds that results stay in Redis.
result_expires = 3600

# Flower lists single calls only if workers send events, which costs 10 to 15 % of a worker's CPU.
worker_send_task_events = True

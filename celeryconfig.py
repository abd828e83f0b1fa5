"""Celery settings of this deployment: workers, beat and the command line read this file from their working directory.

Everything has a safe default in the package; what stands here wins over it. Any Celery setting may be written, by its
lower-case name. Redis itself comes from TARSY_REDIS_URL.
"""

# Calls that one worker process holds in flight. They wait on threads: 256 to 512 is fine, then start more processes.
worker_concurrency = 256

# Seconds that running calls may still take after SIGQUIT (or a second Ctrl-C) before they are cancelled in the MCP
# server.
worker_soft_shutdown_timeout = 10.0

# Seconds that results stay in Redis.
result_expires = 3600

# Flower shows calls one by one only when workers send events, which costs 10 to 15 % of a worker's CPU.
worker_send_task_events = True

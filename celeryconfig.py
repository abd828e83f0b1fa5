"""Celery settings of this deployment: workers, beat and the command line read this file from their working directory.

The package has a safe default for everything; the values in this file override it. Any Celery setting is allowed, under
its lower-case name. Redis itself comes from TARSY_REDIS_URL.
"""

# Calls that one worker process holds in flight. They wait on threads. For more than 512, start more processes.
worker_concurrency = 256

# Seconds that running calls may still take after SIGQUIT (or a second Ctrl-C) before they are cancelled in the MCP
# server.
worker_soft_shutdown_timeout = 10.0

# Seconds that results stay in Redis.
result_expires = 3600

# Flower's own task list shows single calls only if workers send events. Events cost worker CPU.
worker_send_task_events = True

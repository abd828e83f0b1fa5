"""The Celery worker: what it takes from its queues, how it runs that, its leases, start and stop.

startup, shutdown, pool    the process: what is checked first, the event loop and the threads, the end
fetcher, fetch_connection  which messages are taken, and when; the connection for that
bulkhead, suspended_queues, eta   messages that are not for now
hub                wakes the event loop of Celery
fetch_step         a message that was taken: a plain call, or one for Celery's consumer
plain_messages, plain_calls   which messages are plain calls, and running them
consumer, request, request_sets, task_events, task_signals   the way of all other messages, through Celery
lease              renews leases, says that the worker is alive, and searches for the calls of lost workers
cancellation       notices that an agent has cancelled a call
task_poller, revocations   asks servers about the tasks that parked calls wait for; which of them were revoked
resource_changes   drops what servers report as changed from the cache of answers
canvas_rules       what may follow a call of a bound agent
reload, generation, server_changes, policy_terms   a new configuration while the worker runs
error_budgets, shared_pauses, limit_reporter   what this worker learns from others about servers, and they from it
control, health_step   what operators and beat ask of it
"""

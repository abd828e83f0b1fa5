"""Redis, as agents and workers use it: queues, the in-flight table, results, the shared clock, heartbeats.

keys, acl, binding      every name in Redis, and who may use it; `agent_audit` keeps agents' audit stream open
exchange, async_exchange, script   commands and Lua scripts in one round trip, for threads and for event loops
deliveries, delivery, async_deliveries   where every call stands; `steps`, `entries` and `audit_probe` are its scripts,
                        `begun` is its begin marker
parked_calls, parked_waking, parked_places, parked_records, parked_views   calls that wait, how they go on, where they
                        are listed, what is kept of them, and what people see; `input_rounds` is what their servers have
                        asked, `server_tasks` which worker asks about which task
session_directory, watches   which worker holds the session of a run, and which one a watch of a resource;
                        `session_handover` brings calls to the worker with their session
answer_cache, large_results   answers that are kept, and results that are read in parts
results_elsewhere       what is stored of calls if results are in another Redis
fetch, shares, limit_counters, priority_lists   which message a worker takes next: by queue, agent, limit and priority
sweep, leases, delayed  messages whose worker is lost, those that this process has leased, and those of a later time
messages, message_template, received_json, json_values, typed_values   reading and writing messages that any producer
                        may send; `refusal_log` counts what is refused
principals, signing, confinement   who sent a message, and what a worker may do for it
dead_letters, task_failures   messages that are not run again, and tasks without a result
kombu_transport, kombu_message, result_backend   what Celery and kombu see of all that
clock, fleet, error_budget   what all workers share: the time, who is alive, which servers are suspended
redis_url, redis_errors, key_types   the address of a Redis, and what its errors mean
task_names, task_headers   Celery's names
"""

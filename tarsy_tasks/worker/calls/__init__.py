"""One call, from the message to the stored result.

tasks           the Celery tasks: a call's ending becomes that of a task
task_execution  one task in a pool thread, which waits for the loop
intake          a message becomes a call, or the answer that refuses it
running_call    what is known of one call while it runs: data
execution       the body of one call on the loop: stages in order, and that it ends once
chain           how a call passes interceptors; `interceptors` lists them
admission, permission, guard   the package's interceptors: deadline, queue and pin; policy; redelivery and begin marker
call_approval, isolation, result_cache   those of what a server may have: approval by people, sessions of runs, a cache
approvals, quarantine, limits, parking, isolated_sessions, cache_places   what these decide by
operation       what can be asked of a server; `operations` lists what there is: `tool_call`, `prompt_get`, …
invocation      one call is sent, and after a failure sent again: attempts, timeouts, the replay rule
content         MCP result → result; `split_secrets` masks what is cut into pieces, `failures` builds errors
large_results   cuts a result that is too long for a model
event_feed      progress and log lines on their way to the agent
context         what all calls of a worker share
"""

"""One call, from the message to the stored result.

tasks           the Celery tasks: a call's ending becomes that of a task
task_execution  one task in a pool thread, which waits for the loop
intake          a message becomes a call, or the answer that refuses it
running_call    what is known of one call while it runs: data
execution       the body of one call on the loop: stages in order, and that it ends once
chain           how a call passes interceptors; `interceptors` lists them, `admission` and `guard` are the package's
operation       what can be asked of a server; `operations` lists what there is: `tool_call`, `resource_read`, `lists`
invocation      one call is sent, and after a failure sent again: attempts, timeouts, the replay rule
content         MCP result → result; `split_secrets` masks what is cut into pieces, `failures` builds errors
approvals, quarantine   what `admission` and `guard` decide by
context         what all calls of a worker share
"""

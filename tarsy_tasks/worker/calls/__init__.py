"""One call, from the message to the stored result.

tasks           the Celery tasks: a call's ending becomes that of a task
task_execution  one task in a pool thread, which waits for the loop
intake          a message becomes a call, or the answer that refuses it
running_call    what is known of one call while it runs: data
execution       the body of one call on the loop: stages in order, and that it ends once
chain           how a call passes interceptors; `interceptors` lists them
admission, permission, redelivery   the package's interceptors: deadline, queue and pin; policy; begin marker
call_approval, isolated_calls, result_cache   those of what a server may have: approval by people, isolated sessions,
                a cache
approved_definitions, quarantine, over_limit, parking, isolated_sessions, cache_places   what these decide by
operation       what can be asked of a server; `operations` lists what there is: `tool_call`, `resource_read`,
                `resource_watch`, `prompt_get`, `completion`, `lists`
request_arguments, uri_templates   the arguments of requests other than tool calls, and URIs out of templates
invocation      one call is sent, and after a failure sent again: attempts, timeouts, the replay rule
content         MCP result → result; `split_secrets` masks what is cut into pieces, `failures` builds errors
large_results   cuts a result that is too long for a model
input_rounds, held_input   calls whose server asks for input: parked (2026 era), or waiting with their session
                (handshake era); `questions` are what is asked, `input_answers` takes the answers of agents,
                `sent_round` is what is sent with them
server_tasks, task_answer   calls that a server answers with a task: parking them, and the answer when the task is done
call_digest     which call a decision or an answer belongs to
resource_watches, watched_server   the watches that this worker holds, and those over one connection
event_feed      progress and log lines on their way to the agent
context         what all calls of a worker share
"""

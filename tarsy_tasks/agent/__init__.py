"""The half that runs in an agent's process: it enqueues calls and waits for their answers.

executor, async_executor   what an agent holds; `pending_call` is the handle of a call that was submitted
dispatcher      sends calls, on the `background` loop; `submitted` is one of them
connection      what it sends through; `reply_listener` receives the answers
results         stored answers, and texts for calls without one
unanswered      deadlines and cancelling; `withdrawal` asks Redis what became of a call
selection, listing, tool_list, tool_index, prompt   which tools there are, lists of them, searching them
signatures      calls for Celery's group, chain and chord

No worker imports this, and nothing in here imports `tarsy_tasks.worker`, `mcp` or, before the first call, `celery`.
"""

"""The half that runs in an agent's process: it enqueues calls and waits for their answers.

executor, async_executor, base_executor   what an agent holds; `pending_call` is the handle of a submitted call
dispatcher      sends calls, on the `background` loop; `submitted` is one of them
connection      what it sends through; `reply_listener` receives the answers
results         stored answers, and texts for calls without one
unanswered      deadlines and cancelling; `withdrawal` asks Redis what became of a call
waiting, redis_errors   trying again until a deadline, and what an error of Redis means
per_app         what the process has once per Celery application
event_stream, progress_calls, server_event_feed   what agents hear of calls and servers, in the `callback_thread`
selection, listing, current_lists, tool_list   which tools there are, and lists of them
prompt, prompt_budget   texts about them for models
search_tools, search_calls, tool_summary, tool_index   searching them; `tool_words`, `stemmer`, `synonyms`: words
advice, server_statuses   what policy and servers say, without a worker
native_calls, native_results   tools that are functions of the agent; `function_run` runs such functions
summaries, summarizer   long results made short, by a function of the agent
large_results, resources   reading the rest of a result, and what servers offer besides tools
resource_watch, watch_keeper   an iterator of a resource's changes, and renewing the watches of the process
parked_calls, input_calls   calls that wait for people or tasks, and answers to what servers ask
isolated_run, idempotency   sessions of a run, calls that are made once
audit           the entries of calls that no worker had
signatures      calls for Celery's group, chain and chord

No worker imports this, and nothing in here imports `tarsy_tasks.worker`, `mcp` or, before the first call, `celery`.
"""

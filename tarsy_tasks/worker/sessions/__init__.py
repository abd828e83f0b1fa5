"""The MCP sessions: one connection per server, its recovery and its tool list.

connecting         all servers, when the worker starts; `connections` has them afterwards
connection         one server for the worker's whole life: which session calls use, and its replacement
agent_connections  the same for a server that each agent uses with its own credential; `agent_pool` has theirs
isolated_connection   the connection of one run of an agent
elicitation_connections   those of calls whose server may ask something (handshake era); `elicitation_connection`: one
on_demand          stops a server that nobody uses
opening            the attempts to open one session
session            one open session: the SDK's client, its tools, and the signs that it is lost
session_check      whether the server still lists its tools
connection_state   the states of a connection; `capabilities`: what its server offers
tool_requests      `tools/call` without the models of the SDK
input_requests     what a server asks for while it handles a request
tasks_extension    MCP's tasks extension: a server's tasks, and asking about them
resource_subscriptions, cache_hints   what a server reports of its resources, and how long an answer may be kept
list_changes       whether the server has changed its tools or resources meanwhile
listing            tools/list, all pages; `prompt_listing` and `resource_listing` have the other lists; they share
                   `paging`, `definition_list` and `definition_fields`
output_check       whether a result is what its tool promised
recovery           what a failure means: retry or not, and whether the tool ran
backoff, availability   how long to wait, and when a server counts as down
recent_calls, counted_calls   how the last calls ended
call_errors        texts for a call that was sent
connection_errors  texts for a call that got no session
sign_ins           what sessions need to read the sign-ins of people
session_loop       the event loop that all of it runs on
loop_watch         what blocks that loop
"""

"""The MCP sessions: one connection per server, its recovery and its tool list.

connecting         all servers, when the worker starts; `connections` has them afterwards
connection         one server for the worker's whole life: which session calls use, and its replacement
agent_connections  the same for a server that each agent uses with its own credential; `agent_pool` has theirs
isolated           the connection of one run of an agent
on_demand          stops a server that nobody uses
opening            the attempts to open one session
session            one open session: the SDK's client, its tools, and the signs that it is lost
list_changes       whether the server has changed its tools meanwhile
listing            tools/list, all pages; `prompt_listing` and `resource_listing` have the other lists
output_check       whether a result is what its tool promised
recovery           what a failure means: retry or not, and whether the tool ran
backoff, availability   how long to wait, and when a server counts as down
recent_calls, counted_calls   how the last calls ended
call_errors        texts for a call that was sent
connection_errors  texts for a call that got no session
session_loop       the event loop that all of it runs on
loop_watch         what blocks that loop
"""

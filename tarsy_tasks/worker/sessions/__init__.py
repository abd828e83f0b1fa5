"""The MCP sessions: one connection per server, its recovery and its tool list.

connecting         all servers, when the worker starts
connection         one server for the worker's whole life: which session calls use, and its replacement
opening            the attempts to open one session
session            one open session: the SDK's client, its tools, and the signs that it is lost
listing            tools/list, all pages
recovery           what a failure means: retry or not, and whether the tool ran
backoff, availability   how long to wait, and when a server counts as down
call_errors        texts for a call that was sent
connection_errors  texts for a call that got no session
session_loop       the event loop that all of it runs on
loop_watch         what blocks that loop
"""

"""The way of a message to an MCP server and back: the transports, what bounds them, and the processes behind stdio.

transports         which transport a server has, and its parameters
dispatcher         requests and their answers, over any transport
call_listeners, elicitation_handlers   what comes meanwhile
stdio, streamable_http, sse   one transport each
http_client, http_connections, http_bodies   HTTP
credentials        what it is authenticated with; `agent_secrets` and `provided_credentials` are those of agents
access_tokens      OAuth: `client_credentials` and `signed_in` say where the tokens come from
lines, events, messages   messages out of bytes
message_bounds, tool_check, flood   what a server may send, and how much
server_output      what a server writes besides
transport_errors   what takes the place of an answer when a transport fails
program, child_watch, watchdog, sandbox   the process of a stdio server, its confinement and its end
"""

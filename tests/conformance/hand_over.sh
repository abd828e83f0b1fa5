#!/bin/sh
# What the conformance suite starts as the client. The test plays the client itself, and is given here, in the folder $1,
# what the suite says to it: the address of the scenario's server, $2, and the context. It ends when the test says so.
printf '%s' "$MCP_CONFORMANCE_CONTEXT" >"$1/context"
printf '%s' "$2" >"$1/url"
mv "$1/url" "$1/ready"
cat "$1/done"

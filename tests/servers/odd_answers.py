"""A server whose answers are valid JSON that strict parsers refuse."""

import json
import sys

ANSWERS = {
    "surrogate": '{"content": [{"type": "text", "text": "cut \\ud83d here"}]}',
    "misfit": '{"content": [{"type": "text", "text": "seven"}], "structuredContent": {"n": "seven", "m": 1}}',
    "plain": '{"content": [{"type": "text", "text": "promised more"}]}',
    "task": '{"content": [{"type": "text", "text": "as a call"}]}',
    "deep": '{"content": [], "structuredContent": ' + '{"a": ' * 400 + "1" + "}" * 400 + "}",
}

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}}
MORE: dict[str, dict[str, object]] = {
    "misfit": {"outputSchema": NUMBER},
    "plain": {"outputSchema": NUMBER},
    "task": {"execution": {"taskSupport": "required"}, "title": "A task"},
}

for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    if request["method"] == "initialize":
        result = json.dumps(
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            }
        )
    elif request["method"] == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}, **MORE.get(name, {})} for name in ANSWERS]
        result = json.dumps({"tools": tools})
    elif request["method"] == "tools/call":
        result = ANSWERS[request["params"]["name"]]
    else:
        error = {"code": -32601, "message": "no such method"}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)
        continue
    print(f'{{"jsonrpc": "2.0", "id": {request["id"]}, "result": {result}}}', flush=True)

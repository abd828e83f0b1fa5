"""A server whose answers are valid JSON that strict parsers refuse."""

import json
import sys

ANSWERS = {
    "surrogate": '{"content": [{"type": "text", "text": "cut \\ud83d here"}]}',
    "deep": '{"content": [], "structuredContent": ' + '{"a": ' * 400 + "1" + "}" * 400 + "}",
}

for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    if request["method"] == "initialize":
        result = json.dumps(
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            }
        )
    elif request["method"] == "tools/list":
        result = json.dumps({"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ANSWERS]})
    elif request["method"] == "tools/call":
        result = ANSWERS[request["params"]["name"]]
    else:
        error = {"code": -32601, "message": "no such method"}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)
        continue
    print(f'{{"jsonrpc": "2.0", "id": {request["id"]}, "result": {result}}}', flush=True)

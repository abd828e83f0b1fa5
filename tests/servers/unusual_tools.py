"""An MCP server over stdio whose tools are valid in MCP, and unusual for providers of models.

`python unusual_tools.py`: tools with the schemas of `TOOLS`; each gives back its arguments as JSON, `media` an image, a
document and a sound. `python unusual_tools.py 500`: as many plain tools.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from misbehaving_stdio import Message, Server, text, tool

HTML = '"><img src=x onerror="window.hacked=1">'
DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4\n%%EOF\n"
LONG_NAME = "cluster.namespace.workload.deployment.history.of_all_revisions/list"
_PATH = {"path": {"type": "string"}}
_URL = {"url": {"type": "string"}}

TOOLS: dict[str, dict[str, Any]] = {
    "bare": {"type": "object"},
    "either": {
        "type": "object",
        "oneOf": [{"properties": _PATH, "required": ["path"]}, {"properties": _URL, "required": ["url"]}],
    },
    "referring": {"type": "object", "$ref": "#/$defs/Place", "$defs": {"Place": {"properties": _PATH}}},
    "listing": {"type": "object", "properties": {"names": {"type": "array"}, "kind": {"const": "pod"}}},
    "lost": {"type": "object", "$ref": "#/$defs/Nowhere"},
    "spaced": {"type": "object", "properties": {"a path": {"type": "string"}}, "required": ["a path"]},
    "config": {"type": "object", "properties": {"config": {"type": "string"}, "run_manager": {"type": "string"}}},
    LONG_NAME: {"type": "object", "properties": _PATH, "additionalProperties": False},
    HTML: {"type": "object", "properties": {HTML: {"type": "string", "description": HTML}}},
    "media": {"type": "object"},
}


class UnusualTools(Server):
    def list_tools(self, request: Message) -> None:
        if len(sys.argv) > 1:
            self.answer(request, {"tools": [tool(f"t{number}") for number in range(int(sys.argv[1]))]})
            return
        tools = [{"name": name, "description": HTML, "inputSchema": schema} for name, schema in TOOLS.items()]
        tools[0]["description"] = "word " * 400
        self.answer(request, {"tools": tools})

    def echo(self, request: Message) -> None:
        params = request["params"]
        self.answer(request, media() if params["name"] == "media" else text(json.dumps(params["arguments"])))


def media() -> Message:
    return {
        "content": [
            {"type": "text", "text": "three media"},
            {"type": "image", "mimeType": "image/png", "data": base64.b64encode(DOT).decode()},
            {
                "type": "resource",
                "resource": {
                    "uri": "file:///report.pdf",
                    "mimeType": "application/pdf",
                    "blob": base64.b64encode(PDF).decode(),
                },
            },
            {"type": "audio", "mimeType": "audio/wav", "data": base64.b64encode(b"RIFF").decode()},
        ]
    }


if __name__ == "__main__":
    UnusualTools().serve()

"""An MCP server over stdio that lists the tools which a file holds, as the file is at that moment.

`python listing_file.py FILE`: a JSON list of tools. Its own instructions are `INSTRUCTIONS`; a tool gives back its
`text`. It tells of no change, so a listing is the only way to see one.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from misbehaving_stdio import Message, Server

INSTRUCTIONS = "Ask before you act.\n## Tools of mine"


class ListsFile(Server):
    def initialize(self, request: Message) -> None:
        version = request["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "instructions": INSTRUCTIONS}
        self.answer(request, result | {"serverInfo": {"name": "ListsFile", "version": "1"}})

    def list_tools(self, request: Message) -> None:
        self.answer(request, {"tools": json.loads(Path(sys.argv[1]).read_text())})


if __name__ == "__main__":
    ListsFile().serve()

"""The witness over stdio, whose tool `add` becomes a task that only this process knows: `tasks_stdio.py LEDGER`.

A line `get KEY PID` of the ledger says that the worker PID asked about a task, `cancel KEY PID` that it cancelled it. A
task is done once there is a file beside the ledger with the key in its name: LEDGER.KEY.
"""

import os
import sys

sys.path.insert(0, os.path.abspath(f"{__file__}/../../.."))  # noqa: PTH100  pathlib is slow to import

from tests.servers import witness_stdio
from tests.servers.witness_stdio import Message

EXTENSION = "io.modelcontextprotocol/tasks"


class Server(witness_stdio.Server):
    def handle(self, request: Message) -> None:
        match request["method"]:
            case "server/discover":
                capabilities = {"tools": {}, "extensions": {EXTENSION: {}}}
                self.answer(request, {"supportedVersions": ["2026-07-28"], "capabilities": capabilities})
            case "tools/call" if request["params"]["name"] == "add":
                key = request["params"]["arguments"]["key"]
                self.record("run", "add", key, str(os.getppid()))
                task = f"{os.getpid()} {key}"
                self.write({"id": request["id"], "result": {"resultType": "task", **self.describe(task, "working")}})
            case "tasks/get" | "tasks/cancel" as method:
                self.ask(request, method.removeprefix("tasks/"), request["params"]["taskId"])
            case _:
                super().handle(request)

    def ask(self, request: Message, what: str, task: str) -> None:
        pid, _, key = task.partition(" ")
        self.record(what, key, str(os.getppid()))
        if pid != str(os.getpid()):
            error = {"code": -32602, "message": "Failed to retrieve task: Task not found"}
            self.write({"id": request["id"], "error": error})
        elif os.path.exists(f"{self.options.ledger}.{key}"):  # noqa: PTH110  pathlib is slow to import
            result = {"content": [{"type": "text", "text": key}]}
            self.answer(request, {**self.describe(task, "completed"), "result": result})
        else:
            self.answer(request, self.describe(task, "working"))

    def describe(self, task: str, status: str) -> Message:
        at = "2026-11-26T10:30:00Z"
        times = {"createdAt": at, "lastUpdatedAt": at, "ttlMs": None, "pollIntervalMs": 500}
        return {"taskId": task, "status": status, **times}


if __name__ == "__main__":
    options = witness_stdio.build_parser().parse_args(sys.argv[1:])
    Server(options).serve()

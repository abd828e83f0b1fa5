"""An MCP server of the 2026 era with the tasks extension, over Streamable HTTP, whose tasks the test moves on.

Plain JSON-RPC without the SDK, in a thread of the test: a worker that is killed leaves it alone. A call of `build`
becomes a task, unless its client did not declare the extension: then it is refused, as the extension demands. What the
server does wrong is in `faults`, by the key of the call.
"""

import json
import threading
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.servers.plain_http import Message, PlainHandler, PlainServer

__all__ = ["EXTENSION", "Task", "TasksServer"]

EXTENSION = "io.modelcontextprotocol/tasks"
NOT_DECLARED = -32021
_AT = "2026-11-26T10:30:00Z"
_SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
_OUTPUT = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}


@dataclass
class Task:
    """A task of the server.

    Attributes:
        said: What `tasks/get` answers besides the id, beginning with the status.
        script: What it answers first, one after the other.
        gets: How often it was asked for; `done_gets`, of a task that is held: since it is done.
        answers: To what it asked.
        held: The call that fetches its result gets it when this is set.
    """

    id: str
    key: str
    said: Message = field(default_factory=lambda: {"status": "working"})
    script: list[Any] = field(default_factory=list[Any])
    gets: int = 0
    cancels: int = 0
    done_gets: int = 0
    answers: list[Message] = field(default_factory=list[Message])
    held: threading.Event | None = None

    def complete(self, text: str = "", **more: Any) -> None:
        result = {"content": [{"type": "text", "text": text or self.key}], "resultType": "complete", **more}
        self.said = {"status": "completed", "result": result}


class TasksServer(PlainServer):
    """Attributes:
    poll_ms: What it suggests.
    created: What it answers a call with besides, or instead of, what it should, by the key of the call.
    task_ids: Which id a task gets, by the key of its call.
    names: The `Mcp-Name` headers of requests about tasks.
    is_down: It refuses every request; `refused` counts them.
    is_forgetful: It knows no task any more.
    goes_on: While it is not set, requests for tasks get no answer; `held` has the tasks that were asked for.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(_Handler, port)
        self.poll_ms: Any = 50
        self.created: dict[str, Message] = {}
        self.task_ids: dict[str, str] = {}
        self.tasks: dict[str, Task] = {}
        self.runs: Counter[str] = Counter()
        self.names: list[tuple[str, str]] = []
        self.principals: defaultdict[str, list[str]] = defaultdict(list)
        self.lock = threading.Lock()
        self.is_down = False
        self.refused = 0
        self.is_forgetful = False
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.held: set[str] = set()

    def wait_if_held(self, task_id: str) -> None:
        """Keep the answer to a request for a task that is held, after the first time that it was done."""
        task = self.tasks.get(task_id)
        if task is not None and task.held is not None and task.said["status"] == "completed":
            task.done_gets += 1
            if task.done_gets == 2:  # the poller was first, and this is the call
                task.held.wait()

    def task_of(self, key: str) -> Task | None:
        """The task of the call with that key, once there is one."""
        return next((each for each in self.tasks.copy().values() if each.key == key), None)


class _Handler(PlainHandler):
    server: TasksServer

    def do_POST(self) -> None:
        request = json.loads(self.read_body())
        if "id" not in request:
            self.reply(202)
        elif self.server.is_down:
            self.server.refused += 1
            self.reply(502, b"bad gateway")
        else:
            with self.server.lock:
                answer = self.answer(request["method"], request.get("params", {}))
            if request["method"] == "tasks/get":
                if not self.server.goes_on.is_set():
                    self.server.held.add(request["params"]["taskId"])
                    self.server.goes_on.wait()
                self.server.wait_if_held(request["params"]["taskId"])
            self.reply_json({"id": request["id"], **answer})

    def do_GET(self) -> None:
        self.reply(405)

    def answer(self, method: str, params: Message) -> Message:
        declared = params.get("_meta", {}).get("io.modelcontextprotocol/clientCapabilities", {}).get("extensions", {})
        match method:
            case "server/discover":
                capabilities = {"tools": {}, "extensions": {EXTENSION: {}}}
                return _result({"supportedVersions": ["2026-07-28"], "capabilities": capabilities})
            case "tools/list":
                tools = [
                    {"name": "build", "inputSchema": _SCHEMA},
                    {"name": "measure", "inputSchema": _SCHEMA, "outputSchema": _OUTPUT},
                    {"name": "look", "inputSchema": _SCHEMA},
                ]
                return _result({"tools": tools, "ttlMs": 0, "cacheScope": "private"})
            case "tools/call":
                return self.call(params["name"], params["arguments"]["key"], is_declared=EXTENSION in declared)
            case "tasks/get" | "tasks/cancel" | "tasks/update":
                self.server.names.append((method, self.headers.get("Mcp-Name", "")))
                return self.ask(method, params)
            case _:
                return {"error": {"code": -32601, "message": f"no method {method}"}}

    def call(self, tool: str, key: str, *, is_declared: bool) -> Message:
        self.server.runs[key] += 1
        if tool == "look":
            return _result({"content": [{"type": "text", "text": key}]})
        if not is_declared:
            data = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            return {"error": {"code": NOT_DECLARED, "message": "Missing required client capability", "data": data}}
        task = Task(self.server.task_ids.get(key) or uuid.uuid4().hex, key)
        self.server.principals[key].append(self.headers.get("Authorization", ""))
        self.server.tasks.setdefault(task.id, task)
        created = {"taskId": task.id, "status": "working", **self.times(), **self.server.created.get(key, {})}
        return {"result": {"resultType": "task", **created}}

    def ask(self, method: str, params: Message) -> Message:
        task_id = params["taskId"]
        task = None if self.server.is_forgetful else self.server.tasks.get(task_id)
        if task is None:
            return {"error": {"code": -32602, "message": "Failed to retrieve task: Task not found"}}
        self.server.principals[task.key].append(self.headers.get("Authorization", ""))
        if method == "tasks/cancel":
            task.cancels += 1
            if task.said["status"] == "working":
                task.said = {"status": "cancelled"}
            return _result({})
        if method == "tasks/update":
            task.answers.append(params["inputResponses"])
            return _result({})
        task.gets += 1
        said = task.script.pop(0) if task.script else task.said
        if said == "vanished":
            del self.server.tasks[task_id]
            return self.ask(method, params)
        return _result({"taskId": task_id, **self.times(), **said})

    def times(self) -> Message:
        return {"createdAt": _AT, "lastUpdatedAt": _AT, "ttlMs": None, "pollIntervalMs": self.server.poll_ms}


def _result(found: Message) -> Message:
    return {"result": {"resultType": "complete", **found}}

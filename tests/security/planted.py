"""Secrets that are planted wherever one can be, and everything that is done so that they get about."""

import asyncio
import os
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from tarsy_tasks import AsyncToolExecutor, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.agent.pending_call import PendingCall
from tests.plants import find_leaks, plant, read_keys
from tests.processes import Worker
from tests.redis_users import as_user, password_of
from tests.security.everything import Seen, inspect_worker

HOW = {
    "text": Outcome.OK,
    "structured": Outcome.OK,
    "image": Outcome.OK,
    "attachments": Outcome.OK,
    "split": Outcome.OK,
    "base64": Outcome.OK,
    "address": Outcome.OK,
    "notifications": Outcome.OK,
    "refusal": Outcome.TOOL_ERROR,
    "error": Outcome.TOOL_ERROR,
    "nonsense": Outcome.TOOL_ERROR,
    "known": Outcome.OK,
    "known, in an error": Outcome.TOOL_ERROR,
    "known, in a picture": Outcome.OK,
}
"""What any server does when it is asked to tell, and how such a call ends."""
HOW_STDIO = {"large": Outcome.OK, "flood": Outcome.OK, "private key": Outcome.OK, "garbage": Outcome.OK}
HOW_WEB = {"status": Outcome.UNKNOWN, "page": Outcome.TOOL_ERROR, "redirect": Outcome.TOOL_ERROR}
ABOUT_ITSELF = (
    *("name", "version", "instructions", "start", "title", "description", "annotation", "schema", "property"),
    *("default", "example", "member", "change", "hang", "death", "pattern", "broken", "stillborn"),
)
CONFIGURED = ("of the environment", "of a header", "bearer", "in an address", "client", "in a file", "in its place")
BY_MODELS = (
    *("named", "in text", "of the wrong type", "beside the wrong type", "of no member", "of no server", "not selected"),
    *("cancelled", "withdrawn", "lost", "repeated", "of a stranger", "of an unknown task", "of a bad message"),
)
SECRETS = {name: plant(name) for name in (*HOW, *HOW_STDIO, *HOW_WEB, *ABOUT_ITSELF, *CONFIGURED, *BY_MODELS)}
SECRETS |= {name: plant(name, "ghp_") for name in ("tool name", "made up", "made up server", "token of a webhook")}
SECRETS |= {name: plant(name) for name in ("access token", "secret of a webhook", "poison", "argument")}
SECRETS["broker"] = password_of("worker")
OPEN = "of the server that is not masked"
SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'
QUICK = {"connect_s": 15, "recreate_s": 0.5, "call_s": 20}
PATTERNS = {"groups": ["email"], "patterns": ["door-code[ _]([a-z0-9]+)"]}
NODE = f"w0@{os.uname().nodename}"
SERVED = ("desk", "web", "old", "open", "custom", "broken", "stillborn")
COMMANDS = (
    *(
        "servers --json",
        "health --json",
        "tools list desk web old open custom --json",
        "tools diff --json",
        "tools diff",
        "audit --json",
        "audit",
    ),
    *("dead-letters list", "dead-letters list --json", "doctor --json", "config check --json"),
    *("ready", "ready --fleet", "alive"),
)


@dataclass
class Story:
    """What happened.

    Attributes:
        results: Of calls, by server and what was told, or by what the model wrote.
        waiting: The keys that held the arguments of a call while it waited in its queue.
        running: The same of one that ran.
        set_aside: Id of the call that was.
        seen: All that could be read.
    """

    results: dict[str, ToolResult] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    set_aside: str = ""
    seen: Seen = field(default_factory=dict)

    def leaks(self) -> dict[str, set[str]]:
        found = {where: find_leaks(text) for where, text in self.seen.items()}
        return {where: names for where, names in found.items() if names}


class Doomed:
    """Workers that one call kills, one after the other."""

    def __init__(self, directory: Path, server: dict[str, Any], redis_url: str) -> None:
        self._directory = directory
        self._server = server
        self._redis_url = redis_url
        self.workers: list[Worker] = []

    def start(self) -> Worker:
        directory = self._directory / f"doomed{len(self.workers)}"
        worker = Worker(
            directory,
            {"doomed": self._server},
            self._redis_url,
            name=directory.name,
            arguments=["-E"],
            settings=SHORT_LEASE,
        )
        self.workers.append(worker)
        return worker

    def stop(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.stop()


def send(tools: ToolExecutor, name: str, **arguments: Any) -> PendingCall:
    return tools.submit(ToolCall(id="a call", name=name, arguments=arguments))


async def tell_on_web(story: Story) -> None:
    async with AsyncToolExecutor(["web", "old"], timeout_s=40, agent_id="dev", run_id="r8") as tools:
        asked = [(server, how) for server in ("web", "old") for how in HOW] + [("web", how) for how in HOW_WEB]
        calls = [ToolCall(id=how, name=f"{server}.tell", arguments={"how": how}) for server, how in asked]
        found = await tools.execute_many(calls)
        story.results |= {f"{server} {how}": each for (server, how), each in zip(asked, found, strict=True)}
        cancelled = await tools.submit(ToolCall(id="c", name="web.log_in", arguments={"count": 1}))
        await cancelled.cancel()
        await cancelled.result()


def tell_everything(tools: ToolExecutor, story: Story) -> None:
    """Every server says all that it can."""
    pending = {f"desk {how}": send(tools, "desk.tell", how=how) for how in (*HOW, *HOW_STDIO)}
    pending |= {f"open {how}": send(tools, "open.tell", how=how) for how in ("text", "known")}
    pending["custom pattern"] = send(tools, "custom.tell", how="pattern", note=f"door-code {SECRETS['named']}")
    pending["broken"] = send(tools, "broken.tell")
    story.results |= {what: each.result() for what, each in pending.items()}
    asyncio.run(tell_on_web(story))
    story.results["death"] = send(tools, "desk.tell", how="death").result()
    story.results["change"] = send(tools, "custom.tell", how="change").result()


def call_as_models_do(tools: ToolExecutor, story: Story, redis_url: str, worker: Worker) -> None:
    """Secrets in whatever a model writes."""
    written: dict[str, tuple[str, Any]] = {
        "named": ("desk.tell", {"how": "text", "password": SECRETS["named"], "keep": [f"token={SECRETS['named']}"]}),
        "in text": ("desk.tell", f"how: text\npassword: {SECRETS['in text']}"),
        "of the wrong type": ("desk.log_in", {"password": [SECRETS["of the wrong type"]], "count": 1}),
        "beside the wrong type": ("desk.log_in", {"password": SECRETS["beside the wrong type"], "count": "many"}),
        "the right member": ("desk.log_in", {"token": SECRETS["member"], "count": 1}),
        "of no member": ("desk.log_in", {"token": SECRETS["of no member"], "count": 1}),
        "made up": (f"desk.{SECRETS['made up']}", {}),
        "made up, by its pattern": (f"custom.door-code_{SECRETS['pattern']}", {}),
        "made up server": (f"{SECRETS['made up server']}.tell", {}),
        "of no server": ("nowhere.tell", {"password": SECRETS["of no server"]}),
    }
    for what, (name, arguments) in written.items():
        key = f"{SECRETS['repeated']} {what}"
        call = ToolCall(id=what, name=name, arguments=arguments, idempotency_key=key)
        story.results[what] = tools.execute(call)
    with ToolExecutor(["desk"], tool_filter={"desk": ["tell"]}) as few:
        call = ToolCall(id="f", name="desk.log_in", arguments={"password": SECRETS["not selected"]})
        story.results["not selected"] = few.execute(call)
    running = send(tools, "desk.wait", how="hang", password=SECRETS["cancelled"])
    waiting = send(tools, "unserved.tell", note=f"door-code {SECRETS['withdrawn']}")
    worker.wait_for_log("hangs: password: __MASKED__")
    story.seen |= {
        f"{where}, meanwhile": said
        for where, said in inspect_worker(as_user(redis_url, "operator"), NODE, [running.id, waiting.id]).items()
    }
    with redis.Redis.from_url(redis_url) as client:
        story.running, story.waiting = keys_with(client, "cancelled"), keys_with(client, "withdrawn")
    for what, pending in (("cancelled", running), ("withdrawn", waiting)):
        pending.cancel()
        story.results[what] = pending.result()


def send_as_strangers_do(redis_url: str) -> None:
    """What no executor would send."""
    with closing(Celery("stranger", broker=as_user(redis_url, "agent"), set_as_current=False)) as stranger:
        for task, arguments, keywords in (
            ("tarsy.call_tool", ("desk", "tell"), {"arguments": {"password": SECRETS["of a stranger"]}, "call": 7}),
            ("tarsy.call_tool", ("desk", {"password": SECRETS["of a bad message"]}), {}),
            ("tarsy.call_tool", (f"password={SECRETS['of a bad message']}",), {"token": SECRETS["of a bad message"]}),
            ("tarsy.no_such_task", (), {"password": SECRETS["of an unknown task"]}),
        ):
            stranger.send_task(task, arguments, keywords, queue="mcp.desk")


def keys_with(client: redis.Redis, name: str) -> set[str]:
    return {key for key, content in read_keys(client) if find_leaks(content, [name])}

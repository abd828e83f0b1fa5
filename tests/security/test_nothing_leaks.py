"""Secrets come from everywhere, into every part of a deployment; nothing that anybody can read holds any of them."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from celery import Celery

from tarsy_tasks import AsyncToolExecutor, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.agent.executor import PendingCall
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import MAX_DELIVERIES
from tarsy_tasks.telemetry.audit import read_audit
from tests.conftest import StartWorker
from tests.plants import decode_all, find_leaks, plant, read_keys
from tests.processes import Flower, ServiceProcess, Worker, free_port, wait_until
from tests.redis_users import as_user, password_of
from tests.security.everything import (
    Seen,
    inspect_worker,
    listen_to_channels,
    listen_to_logs,
    read_command_lines,
    read_files,
    read_flower,
    read_page,
    run_commands,
)
from tests.servers import telltale
from tests.servers.telltale import MARK, telling_on_web
from tests.servers.webhook_receiver import Receiver, receiver

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
QUICK = {"connect_s": 3, "recreate_s": 0.5, "call_s": 20}
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
    *("poison list", "poison list --json", "doctor --json", "config check --json", "ready", "ready --fleet", "alive"),
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


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    directory = tmp_path_factory.mktemp("secrets")
    (directory / "told.json").write_text(json.dumps(SECRETS))
    told_openly = {**dict.fromkeys(SECRETS, plant(OPEN)), "broker": SECRETS["broker"]}
    (directory / "open.json").write_text(json.dumps(told_openly))
    (directory / "stillborn").write_text(SECRETS["stillborn"])
    (directory / "token").write_text(SECRETS["in a file"])
    told = [telltale.__file__, str(directory / "told.json")]
    stdio = {"command": sys.executable, "args": told, "timeouts": QUICK}
    with telling_on_web(SECRETS) as web:
        oauth = {"type": "oauth_client_credentials", "client_id": "me", "client_secret": "${CLIENT_SECRET}"}
        address = web.url.replace("//", "//me:${ADDRESS_PASSWORD}@")
        yield {
            "desk": {
                **stdio,
                "args": [*told, "--token=${ARGUMENT_TOKEN}"],
                "env": {"MY_TOKEN": "${MY_SECRET}", "API_KEY": SECRETS["in its place"]},
            },
            "web": {
                "url": f"{web.url}/mcp",
                "headers": {"X-Key": "${HEADER_KEY}"},
                "auth": {**oauth, "token_url": f"{web.url}/token"},
                "timeouts": QUICK,
            },
            "old": {
                "url": f"{web.url}/sse",
                "transport": "sse",
                "headers": {"X-Key": "${BEARER}"},
                "auth": {"type": "bearer", "token_file": str(directory / "token")},
                "timeouts": QUICK,
            },
            "open": {
                **stdio,
                "args": [telltale.__file__, str(directory / "open.json")],
                "env": {"MY_TOKEN": "${MY_SECRET}"},
                "masking": {"enabled": False},
            },
            "custom": {**stdio, "masking": PATTERNS},
            "broken": {"url": f"{address}/broken", "masking": PATTERNS, "timeouts": QUICK},
            "stillborn": {
                "command": sys.executable,
                "args": ["-c", f"raise SystemExit('{MARK} password: ' + open('{directory}/stillborn').read())"],
                "timeouts": QUICK,
            },
            "doomed": {**stdio, "masking": PATTERNS},
            "unserved": {**stdio, "masking": PATTERNS},
        }


@pytest.fixture(scope="module")
def hook() -> Iterator[Receiver]:
    """It fails, takes the same alert the second time, and nothing afterwards."""
    with receiver(500, 204, 410) as hook:
        yield hook


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, servers: dict[str, Any], hook: Receiver) -> Worker:
    return start_worker(
        servers,
        wait=False,
        arguments=["-E", "-c", "16", "-Q", ",".join(map(keys.queue, SERVED))],
        environment={
            "MY_SECRET": SECRETS["of the environment"],
            "HEADER_KEY": SECRETS["of a header"],
            "BEARER": SECRETS["bearer"],
            "CLIENT_SECRET": SECRETS["client"],
            "ADDRESS_PASSWORD": SECRETS["in an address"],
            "ARGUMENT_TOKEN": SECRETS["argument"],
            "TARSY_ALERT_WEBHOOK": f"{hook.url}&key={SECRETS['token of a webhook']}",
            "TARSY_ALERT_WEBHOOK_SECRET": SECRETS["secret of a webhook"],
            "TARSY_METRICS_PORT": str(free_port()),
            "TARSY_AUDIT_FILE": "audit.jsonl",
        },
    )


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


@pytest.fixture(scope="module")
def story(
    redis_url: str,
    worker: Worker,
    servers: dict[str, Any],
    hook: Receiver,
    tmp_path_factory: pytest.TempPathFactory,
) -> Story:
    """Everything that can happen, with all that could be read of it."""
    story = Story()
    directory = worker.log_path.parent
    beat_command = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "beat", "-l", "INFO"]
    with ExitStack() as stack:
        channels = stack.enter_context(listen_to_channels(redis_url))
        logs = stack.enter_context(listen_to_logs())
        client = stack.enter_context(redis.Redis.from_url(redis_url))
        doomed = Doomed(tmp_path_factory.mktemp("doomed"), servers["doomed"], redis_url)
        stack.callback(doomed.stop)
        doomed.start()
        beat = ServiceProcess(beat_command, directory / "beat.log", worker.environment_of("beat"), directory)
        stack.enter_context(beat)
        config = worker.environment["TARSY_MCP_CONFIG"]
        flower = Flower(
            directory,
            as_user(redis_url, "flower"),
            ("--logging=debug",),
            {"TARSY_MCP_CONFIG": config, "FLOWER_UNAUTHENTICATED_API": "true"},
        )
        stack.enter_context(flower)
        worker.wait_until_ready()
        doomed.workers[0].wait_until_ready()
        logging.getLogger("tarsy_tasks.agent").info(MARK)
        tools = stack.enter_context(ToolExecutor(timeout_s=40, agent_id="sre", run_id="r7"))

        lost = send(tools, "doomed.wait", how="hang", password=SECRETS["lost"])
        doomed.workers[0].wait_for_log("hangs: password: __MASKED__")
        doomed.workers[0].process.kill()
        doomed.workers[0].process.wait()
        doomed.start()
        tell_everything(tools, story)
        call_as_models_do(tools, story, redis_url, worker)
        send_as_strangers_do(redis_url)
        story.results["lost"] = lost.result()
        deadly = send(tools, "doomed.tell", how="worker's death", note=f"door-code {SECRETS['poison']}")
        for _ in range(MAX_DELIVERIES):
            wait_until(lambda: doomed.workers[-1].process.poll() is not None, "the call kills its worker", 40)
            doomed.start()
        story.results["poison"] = deadly.result()
        story.set_aside = deadly.id
        wait_until(lambda: len(hook.received) >= 2, "an alert was taken", 40)

        story.seen |= read_files(directory, but=("mcp.json",))
        story.seen |= {f"redis {key}": content for key, content in read_keys(client)}
        calls = [entry.task_id or entry.id for entry in read_audit(client, limit=1000).entries]
        story.seen |= read_flower(flower, SERVED, calls, [NODE])
        story.seen |= inspect_worker(as_user(redis_url, "operator"), NODE, calls)
        shown = [f"poison show {deadly.id}{more}" for more in ("", " --arguments --json")]
        story.seen |= run_commands(worker, (*COMMANDS, *shown))
        story.seen["metrics"] = read_page(f"http://127.0.0.1:{worker.environment['TARSY_METRICS_PORT']}/metrics")
        processes = {"worker": worker, "beat": beat, "flower": flower}
        story.seen |= read_command_lines({name: psutil.Process(each.pid) for name, each in processes.items()})
        doomed.stop()
        for each in (flower, beat, worker):
            each.stop()
        story.seen |= {f"redis {key}, in the end": content for key, content in read_keys(client)}
        client.flushall()  # what is not masked on purpose, and checks for servers that nobody serves any more
        story.seen |= read_files(directory, but=("mcp.json",))
        for each in doomed.workers:
            story.seen[f"file {each.log_path.name}"] = each.log_path.read_bytes()
    story.seen |= {"channels": b"\n".join(channels), "logs of agents": b"\n".join(logs)}
    story.seen["webhook"] = b"\n".join(body + repr(headers).encode() for headers, body in hook.received)
    return story


def send(tools: ToolExecutor, name: str, **arguments: Any) -> PendingCall:
    return tools.submit(ToolCall(id="a call", name=name, arguments=arguments))


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


async def tell_on_web(story: Story) -> None:
    async with AsyncToolExecutor(["web", "old"], timeout_s=40, agent_id="dev", run_id="r8") as tools:
        asked = [(server, how) for server in ("web", "old") for how in HOW] + [("web", how) for how in HOW_WEB]
        calls = [ToolCall(id=how, name=f"{server}.tell", arguments={"how": how}) for server, how in asked]
        found = await tools.execute_many(calls)
        story.results |= {f"{server} {how}": each for (server, how), each in zip(asked, found, strict=True)}
        cancelled = await tools.submit(ToolCall(id="c", name="web.log_in", arguments={"count": 1}))
        await cancelled.cancel()
        await cancelled.result()


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


def test_what_was_planted_was_sent_and_masked(story: Story) -> None:
    """Without this, the others would pass for servers that say nothing."""
    told = {f"desk {how}": outcome for how, outcome in (HOW | HOW_STDIO).items()}
    told |= {f"{server} {how}": outcome for server in ("web", "old") for how, outcome in HOW.items()}
    told |= {f"web {how}": outcome for how, outcome in HOW_WEB.items()}
    assert {what: story.results[what].outcome for what in told} == told
    quiet = ("image", "structured", "nonsense", "page")
    silent = [what for what in told if what.split(" ", 1)[1] not in quiet and MARK not in story.results[what].content]
    assert silent == []


def test_arguments_are_checked_against_the_schema_before_masking(story: Story) -> None:
    assert story.results["the right member"].outcome is Outcome.OK
    assert story.results["of no member"].outcome is Outcome.REJECTED


def test_nobody_can_read_what_was_planted(story: Story) -> None:
    leaks = {where: names - {OPEN} for where, names in story.leaks().items()}
    poison = f"redis {keys.dead_letter_key(story.set_aside)}"
    # As the configuration asks for: an argument of a program stands on its command line, and workers warn of it.
    (command_line,) = (where for where in leaks if where.startswith("ps worker "))
    documented = {poison: {"poison"}, f"{poison}, in the end": {"poison"}, command_line: {"argument"}}
    assert {where: names for where, names in leaks.items() if names} == documented


def test_arguments_are_in_redis_only_until_the_call_is_answered(story: Story) -> None:
    assert story.waiting == {keys.queue("unserved"), keys.UNACKED}
    assert story.running == {keys.UNACKED}


def test_an_unmasked_secret_is_in_results_not_in_log_or_audit(story: Story) -> None:
    found = {where for where, names in story.leaks().items() if OPEN in names}
    kinds = ("redis celery-task-meta-", "redis tarsy:tools:open", "Flower /mcp/servers/open", "Flower /mcp/api/calls/")
    for kind in (*kinds, "channels", "tarsy-tasks tools list"):
        assert any(where.startswith(kind) for where in found), kind
    assert not any(where.startswith(("file ", "logs", "redis tarsy:audit", "tarsy-tasks audit")) for where in found)


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("redis celery-task-meta-", MARK),
        ("redis tarsy:audit", "desk"),
        ("redis tarsy:audit:agents", "nowhere"),
        ("redis tarsy:tools:desk", MARK),
        ("redis tarsy:approved-tools:web", MARK),
        ("redis tarsy:alerts", MARK),
        ("redis tarsy:metrics:desk", "calls:ok tell"),
        ("redis tarsy:poison:", "doomed"),
        ("channels", "task-received"),
        ("channels", "worker-mcp-connected"),
        ("channels", MARK),
        ("logs of agents", MARK),
        ("file w0.log", MARK),
        ("file w0.log", "no_such_task"),
        ("file beat.log", "beat"),
        ("file flower.log", "Visit me"),
        ("file audit.jsonl", "log_in"),
        ("file doomed0.log", "ready."),
        ("file run", ""),
        ("webhook", MARK),
        ("webhook", "webhook-signature"),
        ("metrics", "tarsy_calls_total"),
        ("Flower /metrics", "tarsy_calls_total"),
        ("Flower /mcp/servers/desk", MARK),
        ("Flower /mcp/api/servers/desk", MARK),
        ("Flower /mcp/calls", "desk.log_in"),
        ("Flower /mcp/calls/", MARK),
        ("Flower /task/", "desk.tell"),
        ("Flower /tasks/datatable", "desk.tell"),
        ("Flower /worker/", "task_acks_late"),
        ("Flower /broker", "Broker"),
        ("inspect active, meanwhile", "desk.wait"),
        ("inspect query_task, meanwhile", "desk.wait"),
        ("inspect conf", "redis://"),
        ("inspect report", "celery"),
        ("inspect stats", "broker"),
        ("inspect registered", "tarsy.call_tool"),
        ("inspect mcp_sessions", MARK),
        ("tarsy-tasks servers --json", MARK),
        ("tarsy-tasks health --json", MARK),
        ("tarsy-tasks tools list", MARK),
        ("tarsy-tasks tools diff", MARK),
        ("tarsy-tasks audit --json", "nowhere"),
        ("tarsy-tasks poison list", "doomed.tell"),
        ("tarsy-tasks poison show", "door-code __MASKED__"),
        ("tarsy-tasks doctor --json", MARK),
        ("tarsy-tasks config check --json", "••••"),
        ("tarsy-tasks ready", "ok"),
        ("ps worker", "telltale.py"),
        ("ps beat", "celery"),
        ("ps flower", "flower"),
    ],
)
def test_each_place_was_read(story: Story, where: str, what: str) -> None:
    texts = [text for place, text in story.seen.items() if place.startswith(where)]
    assert any(what.encode() in reading for text in texts for reading in decode_all(text)), texts[:1]

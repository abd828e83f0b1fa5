"""Secrets come from everywhere, into every part of a deployment; nothing that anybody can read holds any of them."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
import redis

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import QUARANTINE_FROM_DELIVERY
from tarsy_tasks.telemetry.audit import read_audit
from tests.conftest import StartWorker
from tests.plants import decode_all, plant, read_keys
from tests.processes import Flower, ServiceProcess, Worker, free_port, wait_until
from tests.redis_users import as_user
from tests.security.everything import (
    inspect_worker,
    listen_to_channels,
    listen_to_logs,
    read_command_lines,
    read_files,
    read_flower,
    read_page,
    run_commands,
)
from tests.security.planted import (
    COMMANDS,
    HOW,
    HOW_STDIO,
    HOW_WEB,
    NODE,
    OPEN,
    PATTERNS,
    QUICK,
    SECRETS,
    SERVED,
    Doomed,
    Story,
    call_as_models_do,
    send,
    send_as_strangers_do,
    tell_everything,
)
from tests.servers import telltale
from tests.servers.telltale import MARK, telling_on_web
from tests.servers.webhook_receiver import Receiver, receiver


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
        patient = stack.enter_context(ToolExecutor(timeout_s=120, agent_id="sre", run_id="r7"))
        deadly = send(patient, "doomed.tell", how="worker's death", note=f"door-code {SECRETS['poison']}")
        for _ in range(QUARANTINE_FROM_DELIVERY):
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
        shown = [f"dead-letters show {deadly.id}{more}" for more in ("", " --arguments --json")]
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
        ("tarsy-tasks dead-letters list", "doomed.tell"),
        ("tarsy-tasks dead-letters show", "door-code __MASKED__"),
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

"""What cannot be done in a worker, by Celery or by extensions, while it works for a message of a bound agent."""

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.binding import decide_binding
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until
from tests.redis_users import as_user, url_of
from tests.warm_start import warm_command

TRYING = """
import json
from pathlib import Path
from celery import shared_task
from celery.signals import task_postrun

directory = Path({directory!r})

@shared_task(name="reports.make")
def make():
    (directory / "reported").touch()

@task_postrun.connect
def try_all(task, **_):
    try:
        (directory / "tried").touch(exist_ok=False)  # what is tried runs tasks, too
    except FileExistsError:
        return
    app, call = task.app, ["vault", "hold", {{"name": "stolen", "seconds": 0}}]

    def send_event():
        with app.connection_for_write() as connection, app.events.Dispatcher(connection) as dispatcher:
            dispatcher.send("worker-heartbeat")

    tries = {{
        "apply": lambda: app.tasks["tarsy.call_tool"].apply(call, throw=True),
        "call": lambda: app.tasks["tarsy.call_tool"](*call),
        "send to vault": lambda: app.send_task("tarsy.call_tool", call, queue="mcp.vault"),
        "send to desk": lambda: app.send_task("tarsy.list_tools", ["desk"], queue="mcp.desk", task_id="sent"),
        "command": lambda: app.control.revoke("another"),
        "event": send_event,
    }}
    found = {{}}
    for name, attempt in tries.items():
        try:
            attempt()
            found[name] = "done"
        except Exception as error:
            found[name] = type(error).__name__
    part = directory / "outcomes.part"
    part.write_text(json.dumps(found))
    part.rename(directory / "outcomes.json")
"""


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("witness")


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, witness: Path) -> Worker:
    recording = warm_command("-m", "tests.servers.recording", str(witness))
    return start_worker({"desk": DEMO_SERVER, "vault": recording}, settings=TRYING.format(directory=str(witness)))


@pytest.fixture(scope="module")
def agent(worker: Worker, redis_url: str) -> Celery:
    url = as_user(redis_url, "agent")
    return Celery("agent", broker=url, backend=url, set_as_current=False)


def test_only_what_the_agent_itself_may_do_is_done(agent: Celery, witness: Path) -> None:
    sent = agent.send_task("tarsy.call_tool", ["desk", "echo", {"text": "x"}], queue="mcp.desk")
    assert sent.get(timeout=30)["outcome"] == "ok"
    outcomes = witness / "outcomes.json"
    wait_until(outcomes.exists, "all was tried")
    assert json.loads(outcomes.read_text()) == {
        "apply": "Confined",
        "call": "Confined",
        "send to vault": "Confined",
        "send to desk": "done",
        "command": "Confined",
        "event": "done",
    }
    assert agent.AsyncResult("sent").get(timeout=30)["error"] is None
    assert not (witness / "stolen.begun").exists()


def test_the_queue_of_a_server_is_for_tasks_of_this_package(agent: Celery, worker: Worker, witness: Path) -> None:
    sent = agent.send_task("reports.make", queue="mcp.desk")
    sent.get(timeout=30, propagate=False)
    assert "only tasks of this package" in str(sent.result)
    assert not (witness / "reported").exists()


def test_with_any_canvas_a_worker_sends_what_it_is_asked_for(
    start_worker: StartWorker, agent: Celery, redis_url: str
) -> None:
    start_worker({"shelf": DEMO_SERVER}, environment={"TARSY_CANVAS": "any"})
    elsewhere = agent.signature("tarsy.call_tool", ["store", "echo", {"text": "x"}], immutable=True, queue="mcp.store")
    sent = agent.send_task("tarsy.call_tool", ["shelf", "echo", {"text": "x"}], queue="mcp.shelf", link=elsewhere)
    assert sent.get(timeout=30)["outcome"] == "ok"
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen("mcp.store") == 1
        client.delete("mcp.store", keys.waiting_key("mcp.store"), keys.UNACKED)


@pytest.mark.parametrize(
    ("canvas", "url", "is_bound", "reason"),
    [
        (None, url_of(6379, "worker"), True, "the Redis URL names the user `worker`"),
        (None, "redis://:secret@127.0.0.1:6379/0", False, "the Redis URL names no user"),
        (None, "redis://default:secret@127.0.0.1:6379/0", False, "the Redis URL names no user"),
        (None, "redis://127.0.0.1:6379/0", False, "the Redis URL names no user"),
        ("any", url_of(6379, "worker"), False, "TARSY_CANVAS is any"),
        ("same_queue", "redis://127.0.0.1:6379/0", True, "TARSY_CANVAS is same_queue"),
    ],
)
def test_agents_are_bound_where_redis_has_users(canvas: Any, url: str, is_bound: bool, reason: str) -> None:
    binding = decide_binding(canvas, [url])
    assert (binding.is_bound, binding.reason) == (is_bound, reason)
    assert binding.covers("mcp.desk") is is_bound
    assert not binding.covers("reports")

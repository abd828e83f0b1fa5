"""An agent that may call one server gets no other one called, stored or cancelled by what follows its messages."""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import chain, chord, group

from tarsy_tasks import Outcome, PendingCall, ToolCall, ToolExecutor, tool_signature
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import TarsyApp, build_app
from tests.processes import DEMO_SERVER, Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.security.attacker import DESK, FAILING, GROUP_STATE, Attacker, attacks, composite, signature
from tests.valkey import Valkey
from tests.warm_start import warm_command


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(agents=(AgentUser("sre", ("desk",)), AgentUser("dev", ("desk", "vault")))) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("witness")


@pytest.fixture(scope="module")
def worker(valkey: Valkey, witness: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Of both servers; `vault` records its calls. That the URL names a user of Redis is all that binds the agents."""
    recording = warm_command("-m", "tests.servers.recording", str(witness))
    directory = tmp_path_factory.mktemp("worker")
    with Worker(directory, {"desk": DEMO_SERVER, "vault": recording}, url_of(valkey.port)) as worker:
        worker.wait_until_ready()
        with environment_of(worker):
            yield worker


def app_of(valkey: Valkey, user: str) -> TarsyApp:
    url = url_of(valkey.port, user)
    return build_app({"broker_url": url, "result_backend": url})


@pytest.fixture(scope="module")
def dev(worker: Worker, valkey: Valkey) -> Iterator[ToolExecutor]:
    """An agent that may call both servers."""
    with closing(app_of(valkey, "dev")) as app, ToolExecutor(timeout_s=30, app=app) as tools:
        yield tools


@pytest.fixture(scope="module")
def sre(worker: Worker, valkey: Valkey) -> Iterator[TarsyApp]:
    with closing(app_of(valkey, "sre")) as app:
        yield app


@pytest.fixture(scope="module")
def attacker(worker: Worker, valkey: Valkey) -> Iterator[Attacker]:
    with redis.Redis.from_url(url_of(valkey.port, "sre")) as client:
        yield Attacker(client, "sre")


@pytest.fixture
def ended(worker: Worker) -> Any:
    """Waits until the worker has done with a message, except for what that message had sent."""

    def wait(task_id: str) -> None:
        last = re.compile(rf"\[{task_id}\] (succeeded|raised)|(Discarding revoked task|refused a message).*{task_id}")
        wait_until(lambda: last.search(worker.log), f"{task_id} has ended")

    return wait


@pytest.fixture
def settled(ended: Any, valkey: Valkey) -> Any:
    """Waits until a message has ended, and all that it had sent, too."""

    def wait(task_id: str) -> None:
        ended(task_id)
        with redis.Redis.from_url(url_of(valkey.port)) as client:
            places = ("mcp.desk", "mcp.vault", "mcp.desk:a:sre", "mcp.vault:a:dev", keys.LEASES)
            wait_until(lambda: not client.exists(*places), "nothing waits or runs")

    return wait


def hold(name: str, seconds: float) -> ToolCall:
    return ToolCall(name="vault.hold", arguments={"name": name, "seconds": seconds})


@pytest.fixture
def victim(dev: ToolExecutor, witness: Path) -> Iterator[PendingCall]:
    """A call of another agent to the other server, which runs for as long as the test."""
    name = str(uuid.uuid4())
    pending = dev.submit(hold(name, 60))
    wait_until((witness / f"{name}.begun").exists, "it runs")
    yield pending
    pending.cancel()


@pytest.mark.parametrize("attack", attacks(DESK))
def test_no_message_has_another_server_called(attacker: Attacker, witness: Path, settled: Any, attack: str) -> None:
    name = str(uuid.uuid4())
    vault = {**signature("vault"), "args": ["vault", "hold", {"name": name, "seconds": 0}]}
    found = attacks(vault)[attack]
    headers = found.get("headers", {})
    if "size" in found:
        headers = {**headers, "group": attacker.end_header(found["size"]), "group_index": 0}
    task, args = FAILING if found.get("fails") else ("tarsy.call_tool", None)
    settled(attacker.send(found["embed"], task=task, args=args, **headers))
    assert not (witness / f"{name}.begun").exists()


def test_a_refusal_says_why(attacker: Attacker, ended: Any, worker: Worker) -> None:
    sent = attacker.send({"callbacks": [signature("vault", secret_option="hidden")]})
    ended(sent)
    answer = wait_until(lambda: attacker.answer_of(sent), "it is answered")
    assert answer["result"]["exc_type"] == "InvalidTaskError"
    assert "callbacks: the option 'queue' must not be set" in answer["result"]["exc_message"][0]
    worker.wait_for_log("refused a message, callbacks: the option 'queue'")


def in_a_pool_thread(attacker: Attacker, victim: str, fresh: str) -> None:
    attacker.send(
        {"chain": [signature("desk", task_id=victim), signature("desk", task_id=fresh)]}, task=FAILING[0], args=[]
    )


def in_the_consumer(attacker: Attacker, victim: str, fresh: str, **headers: Any) -> None:
    """A message that has expired, in a chord: its body fails, and then the rest of the chain of the body."""
    body = signature("desk", task_id=victim, chain=[signature("desk", task_id=fresh)])
    headers = {"expires": "2020-01-01T00:00:00+00:00", **headers}
    attacker.send({"chord": body}, group=attacker.end_header(), group_index=0, **headers)


def by_a_timer(attacker: Attacker, victim: str, fresh: str) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    expires, eta = soon.isoformat(), (soon + timedelta(milliseconds=200)).isoformat()
    in_the_consumer(attacker, victim, fresh, expires=expires, eta=eta)


@pytest.mark.parametrize("attack", [in_a_pool_thread, in_the_consumer, by_a_timer])
def test_no_message_stores_the_answer_of_a_call_in_flight(attacker: Attacker, victim: PendingCall, attack: Any) -> None:
    fresh = str(uuid.uuid4())
    attack(attacker, victim.id, fresh)
    answer = wait_until(lambda: attacker.answer_of(fresh), "what never became a message has failed")
    assert answer["status"] == "FAILURE"
    assert attacker.answer_of(victim.id) is None


def test_no_message_has_a_call_revoked(
    attacker: Attacker, dev: ToolExecutor, witness: Path, ended: Any, worker: Worker
) -> None:
    name = str(uuid.uuid4())
    running = dev.submit(hold(name, 3))
    wait_until((witness / f"{name}.begun").exists, "it runs")
    body = composite("group", tasks=[signature("desk", task_id=running.id)])
    group_id = attacker.end_header()
    ended(attacker.send({"chord": body}, task=FAILING[0], args=[], group=group_id, group_index=0))
    assert running.result().outcome is Outcome.OK
    assert worker.log.count("the body of a chord that has failed, are not revoked") == 1
    assert "Failed to handle group chord error" not in worker.log


def test_the_state_of_a_group_is_not_restored(attacker: Attacker) -> None:
    group_id, body = attacker.end_header(), str(uuid.uuid4())
    attacker.client.set(f"{GROUP_STATE}{group_id}", json.dumps({"result": "not that of a group"}), ex=60)
    attacker.send({"chord": signature("desk", task_id=body)}, group=group_id, group_index=0)
    answer = wait_until(lambda: attacker.answer_of(body), "the chord has ended")
    assert answer["status"] == "SUCCESS"


@pytest.mark.parametrize("part", [".s", ".j"])
def test_a_damaged_state_of_a_group_damages_nothing_else(attacker: Attacker, ended: Any, part: str) -> None:
    group_id = attacker.end_header()
    attacker.client.set(f"{GROUP_STATE}{group_id}{part}", "no number", ex=60)
    sent = attacker.send({"chord": DESK}, group=group_id, group_index=0)
    ended(sent)
    assert (attacker.answer_of(sent) or {})["status"] == "SUCCESS"


def test_an_errback_is_a_call_like_any_other(attacker: Attacker, worker: Worker) -> None:
    errback = str(uuid.uuid4())
    attacker.send({"errbacks": [signature("desk", task_id=errback)]}, task=FAILING[0], args=[])
    wait_until(lambda: attacker.answer_of(errback), "it is answered")
    worker.wait_for_log(f"Task tarsy.call_tool[{errback}] succeeded")


def test_canvases_of_one_server_run(sre: TarsyApp) -> None:
    def echo(text: str = "x", **options: Any) -> Any:
        return tool_signature("desk.echo", {"text": text}, app=sre).set(**options)

    linked = str(uuid.uuid4())
    canvases = [
        chain(echo(), echo("end")),
        chain(echo(), group(echo(), echo()), echo("end")),
        chain(group(echo(), echo()), group(echo(), echo()), echo(), echo("end")),
        chord([echo(), echo()], chain(echo(), echo("end"))),
        chord([chain(echo(), group(echo(), echo())), echo()], echo("end")),
        chord([echo(link=[echo(task_id=linked)]), chord([echo(), echo()], echo())], echo("end")),
    ]
    for sent in [canvas.delay() for canvas in canvases]:
        assert sent.get(timeout=30)["content"] == "end"
    assert sre.AsyncResult(linked).get(timeout=30)["content"] == "x"
    both = chord([echo(), echo()], group(echo("end"), echo("end"))).delay()
    assert [each["content"] for each in both.get(timeout=30)] == ["end", "end"]

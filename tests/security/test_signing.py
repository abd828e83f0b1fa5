"""Signed messages: what is not signed by somebody trusted is refused with an answer, and harms nobody."""

import base64
import json
import pickle
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.security.certificate import Certificate
from celery.security.key import PrivateKey
from celery.security.serialization import SecureSerializer

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.agent.connection import connection_of
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.session_directory import session_key_of
from tarsy_tasks.broker.signing import read_signed
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.errors import ConfigError
from tests.cli.commands import run_command, run_forked
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, ServiceProcess, Worker, wait_until
from tests.redis_users import as_user
from tests.security.attacker import composite, signature
from tests.security.certificates import Authority

ECHO = ToolCall(id="1", name="desk.echo", arguments={"text": "hello"})
MESSAGE = [["desk", "echo", {"text": "hello"}], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]

Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signing")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory, "authority")


@pytest.fixture(scope="module")
def trusted(directory: Path) -> Path:
    """The directory of those whose messages are taken."""
    path = directory / "trusted"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def pairs(authority: Authority, trusted: Path) -> dict[str, Pair]:
    """Certificate and key of those who are trusted."""
    pairs = {name: authority.issue(name) for name in ("agent", "worker", "beat", "operator")}
    for name, (certificate, _) in pairs.items():
        (trusted / f"{name}.pem").write_bytes(certificate.read_bytes())
    return pairs


@pytest.fixture(scope="module")
def agent(pairs: dict[str, Pair]) -> Pair:
    return pairs["agent"]


def variables(pair: Pair, trusted: Path | None = None) -> dict[str, str]:
    found = {"TARSY_SIGNING_CERTIFICATE": str(pair[0]), "TARSY_SIGNING_KEY": str(pair[1])}
    return found if trusted is None else {**found, "TARSY_SIGNING_TRUSTED": str(trusted)}


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, pairs: dict[str, Pair], trusted: Path) -> Worker:
    return start_worker({"desk": DEMO_SERVER}, environment=variables(pairs["worker"], trusted))


@pytest.fixture
def app_with(redis_url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    def build(environment: dict[str, str]) -> TarsyApp:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        url = as_user(redis_url, "agent")
        app = build_app({"broker_url": url, "result_backend": url})
        request.addfinalizer(app.close)
        return app

    return build


def send(redis_url: str, task_id: str, body: bytes, content_type: str) -> None:
    """A message as any producer may write it."""
    headers = {"id": task_id, "task": "tarsy.call_tool", "lang": "py", "argsrepr": "", "kwargsrepr": ""}
    with (
        Celery("stranger", broker=as_user(redis_url, "agent")).connection_for_write() as connection,
        connection.Producer() as producer,
    ):
        producer.publish(
            body,
            routing_key="mcp.desk",
            exchange="",
            headers=headers,
            content_type=content_type,
            content_encoding="utf-8",
            correlation_id=task_id,
        )


def answer_to(redis_url: str, task_id: str) -> dict[str, Any]:
    with redis.Redis.from_url(redis_url) as client:
        found = wait_until(lambda: client.get(f"celery-task-meta-{task_id}"), "it is answered")
    assert isinstance(found, bytes)
    return json.loads(found)


def serializer_of(pair: Pair) -> SecureSerializer:
    """Celery's own, with which any agent can sign."""
    return SecureSerializer(PrivateKey(pair[1].read_text()), Certificate(pair[0].read_text()))


def is_well(worker: Worker, agent: Pair, app_with: Any) -> bool:
    result = ToolExecutor(timeout_s=20, app=app_with(variables(agent))).execute(ECHO)
    return result.content == "hello" and worker.process.poll() is None


def test_what_a_trusted_agent_signed_is_executed(worker: Worker, agent: Pair, app_with: Any) -> None:
    with ToolExecutor(timeout_s=20, app=app_with(variables(agent))) as tools:
        assert tools.list_tools()
        assert tools.execute(ECHO).content == "hello"


def test_a_signed_call_names_the_session_that_workers_find(
    worker: Worker, agent: Pair, app_with: Any, redis_url: str
) -> None:
    app = app_with(variables(agent))
    with (
        ToolExecutor(session="run", run_id="r7", timeout_s=20, app=app) as tools,
        redis.Redis.from_url(redis_url) as store,
    ):
        assert tools.execute(ECHO).content == "hello"
        named = connection_of(app).principals
        assert [name for name in named if store.exists(session_key_of("desk", name, "r7"))] == ["CN=agent"]


def test_what_is_not_signed_is_refused_with_an_answer(
    worker: Worker, agent: Pair, app_with: Any, redis_url: str
) -> None:
    result = ToolExecutor(timeout_s=20, app=app_with({})).execute(ECHO)
    assert (result.outcome, result.error_code) == (Outcome.REJECTED, ErrorCode.INVALID_MESSAGE)
    assert "did not run" in result.content
    assert "hello" not in worker.log
    worker.wait_for_log("it is not signed")
    assert is_well(worker, agent, app_with)


def test_a_message_with_an_unknown_signer_is_refused(
    worker: Worker, agent: Pair, app_with: Any, directory: Path
) -> None:
    stranger = Authority(directory, "strangers").issue("stranger")
    result = ToolExecutor(timeout_s=20, app=app_with(variables(stranger))).execute(ECHO)
    assert result.error_code is ErrorCode.INVALID_MESSAGE
    worker.wait_for_log("Unknown certificate")
    assert is_well(worker, agent, app_with)


def test_what_was_changed_on_its_way_is_refused(worker: Worker, agent: Pair, app_with: Any, redis_url: str) -> None:
    signed = base64.b64decode(serializer_of(agent).serialize(MESSAGE))
    assert b'"echo"' in signed
    send(redis_url, "tampered", base64.b64encode(signed.replace(b'"echo"', b'"wait"')), "application/data")
    assert answer_to(redis_url, "tampered")["result"]["exc_type"] == "DecodeError"
    worker.wait_for_log("it was not made by authority")
    assert is_well(worker, agent, app_with)


def test_a_worker_signs_nothing_for_the_queue_of_another_server(
    worker: Worker, agent: Pair, app_with: Any, redis_url: str
) -> None:
    copied = str(uuid.uuid4())
    inner = [signature("vault"), signature("vault", "mcp.desk", task_id=copied)]
    for following in (composite("group", tasks=inner[:1]), inner[1]):
        body = [["desk", "echo", {"text": "hello"}], {}, {"callbacks": [following]}]
        task_id = str(uuid.uuid4())
        send(redis_url, task_id, serializer_of(agent).serialize(body).encode(), "application/data")
        assert answer_to(redis_url, task_id)["result"]["exc_type"] == "InvalidTaskError"
    assert is_well(worker, agent, app_with)
    with redis.Redis.from_url(redis_url) as client:
        assert not client.exists("mcp.vault", keys.result_key(copied))


@pytest.mark.parametrize("kind", ["application/x-python-serialize", "application/x-yaml", "text/plain"])
def test_what_is_signed_and_no_json_is_never_read(
    worker: Worker, agent: Pair, app_with: Any, redis_url: str, tmp_path: Path, kind: str
) -> None:
    trace = tmp_path / "ran"

    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (trace,))

    signing = serializer_of(agent)
    body = pickle.dumps(Code())
    signed = signing._pack(
        body, kind, "binary", signer=signing._cert.get_id(), signature=signing._key.sign(body, signing._digest)
    )
    task_id = f"code {kind}"
    send(redis_url, task_id, signed, "application/data")
    assert answer_to(redis_url, task_id)["status"] == "FAILURE"
    assert not trace.exists()
    worker.wait_for_log("the signed body is not JSON")
    assert is_well(worker, agent, app_with)


@pytest.mark.parametrize("body", [b"no base64!", base64.b64encode(b"a\x00\x01b")])
def test_what_is_not_a_signed_message_is_refused(
    worker: Worker, agent: Pair, app_with: Any, redis_url: str, body: bytes
) -> None:
    task_id = f"garbage {len(body)}"
    send(redis_url, task_id, body, "application/data")
    assert answer_to(redis_url, task_id)["status"] == "FAILURE"
    assert is_well(worker, agent, app_with)


def test_a_signature_names_its_sender_but_not_that_of_a_follower(
    authority: Authority, pairs: dict[str, Pair], trusted: Path, app_with: Any
) -> None:
    sre = authority.issue("sre")
    (trusted / "sre.pem").write_bytes(sre[0].read_bytes())
    app_with(variables(pairs["worker"], trusted))
    signers = {name: serializer_of(pair) for name, pair in {**pairs, "sre": sre}.items()}
    found = {name: read_signed(signer.serialize(MESSAGE)).signer for name, signer in signers.items()}
    # What follows a call the worker signs itself.
    assert found == {"agent": "CN=agent", "worker": "", "beat": "CN=beat", "operator": "CN=operator", "sre": "sre"}


def test_beat_signs_its_checks(worker: Worker, pairs: dict[str, Pair], tmp_path: Path, redis_url: str) -> None:
    command = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "beat", "-l", "INFO"]
    environment = {**unsigned(worker.environment_of("beat")), **variables(pairs["beat"])}
    beat = ServiceProcess(command, tmp_path / "beat.log", environment, tmp_path)
    try:
        with redis.Redis.from_url(redis_url) as client:
            wait_until(lambda: client.exists(keys.health_key("desk")), "a check came through the queue")
    finally:
        beat.stop()


@pytest.mark.parametrize("is_signed", [True, False])
def test_workers_answer_operators_who_sign(
    worker: Worker, pairs: dict[str, Pair], trusted: Path, is_signed: bool
) -> None:
    signing = variables(pairs["operator"], trusted) if is_signed else {}
    command = ["-m", "celery", "-A", "tarsy_tasks", "inspect", "ping", "--timeout", "5"]
    done = run_forked(command, {**unsigned(worker.environment), **signing}, Path.cwd())
    assert ("pong" in done.stdout) is is_signed
    assert worker.process.poll() is None


def test_a_retried_dead_letter_is_signed_by_the_operator(
    worker: Worker, pairs: dict[str, Pair], agent: Pair, trusted: Path, redis_url: str
) -> None:
    body = base64.b64encode(serializer_of(agent).serialize(MESSAGE).encode()).decode()
    headers = {"id": "aside", "task": "tarsy.call_tool", "lang": "py", "argsrepr": "", "kwargsrepr": ""}
    properties = {"delivery_tag": "aside", "delivery_info": {"exchange": "", "routing_key": "mcp.desk"}}
    message = {
        "body": body,
        "headers": headers,
        "properties": {**properties, "body_encoding": "base64"},
        "content-type": "application/data",
        "content-encoding": "utf-8",
    }

    def dead_letters(*words: str, **signing: str) -> subprocess.CompletedProcess[str]:
        return run_command("dead-letters", *words, environment={**unsigned(worker.environment), **signing})

    with redis.Redis.from_url(redis_url) as client:
        client.set(keys.dead_letter_key("aside"), f"mcp.desk\n\n{json.dumps(message)}", ex=600)
        client.zadd(keys.DEAD_LETTERS, {"aside": client.time()[0]})
        client.expire(keys.DEAD_LETTERS, 600)
        assert "it is signed" in dead_letters("list").stdout
        assert dead_letters("retry", "aside").returncode == 1
        own = variables(pairs["operator"], trusted)
        assert "desk.echo" in dead_letters("list", **own).stdout
        assert dead_letters("retry", "aside", **own).returncode == 0
    assert answer_to(redis_url, "aside")["result"]["content"] == "hello"


def unsigned(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("TARSY_SIGNING_")}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"TARSY_SIGNING_KEY": ""}, "together"),
        ({"TARSY_SIGNING_KEY": "/nowhere/key"}, "/nowhere/key"),
        ({"TARSY_SIGNING_CERTIFICATE": "expired.pem"}, "has expired"),
        ({"TARSY_SIGNING_CERTIFICATE": "agent.key"}, "cannot be signed"),
        ({"TARSY_SIGNING_TRUSTED": "empty"}, "contains no certificate"),
        ({"TARSY_SIGNING_TRUSTED": "odd"}, "cannot be signed or verified"),
    ],
)
def test_what_cannot_sign_is_an_error_of_the_configuration(
    app_with: Any, agent: Pair, authority: Authority, directory: Path, change: dict[str, str], said: str
) -> None:
    authority.issue("expired", days=-1)
    (directory / "empty").mkdir(exist_ok=True)
    (directory / "odd").mkdir(exist_ok=True)
    (directory / "odd" / "note.txt").write_text("no certificate")
    places = {name: str(directory / value) if value and value[0] != "/" else value for name, value in change.items()}
    with pytest.raises(ConfigError, match=said):
        app_with({**variables(agent), **places})

"""Redis behind TLS: encrypted, each side knows the other, and a certificate that is wrong is named."""

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.errors import BrokerUnavailable
from tests.chaos.network import Network
from tests.processes import DEMO_SERVER, Worker, environment_of
from tests.redis_users import password_of
from tests.security.certificates import Authority
from tests.valkey import Valkey

ECHO = ToolCall(id="1", name="desk.echo", arguments={"text": "hello"})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory, "authority")


@pytest.fixture(scope="module")
def port(directory: Path, authority: Authority) -> Iterator[int]:
    """Of a Redis that speaks TLS only, and lets in who has a certificate of the authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.load_cert_chain(*authority.issue("redis"))
    context.verify_mode = ssl.CERT_REQUIRED
    with Valkey() as valkey, Network(valkey.port, context).running() as network:
        yield network.port


@pytest.fixture(scope="module")
def client_certificate(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("client")


def url_of(port: int, authority: Path, certificate: tuple[Path, Path] | None, user: str = "admin") -> str:
    url = f"rediss://{user}:{password_of(user)}@127.0.0.1:{port}/0?ssl_cert_reqs=required&ssl_ca_certs={authority}"
    return url + (f"&ssl_certfile={certificate[0]}&ssl_keyfile={certificate[1]}" if certificate else "")


def refusal(url: str, timeout_s: float = 2.0) -> str:
    """Why an agent with this URL reaches no Redis; it must say so in time."""
    started = time.monotonic()
    with closing(build_app({"broker_url": url, "result_backend": url})) as app:
        tools = ToolExecutor(["desk"], timeout_s=timeout_s, app=app)
        with pytest.raises(BrokerUnavailable) as refused:
            tools.execute(ECHO)
    assert time.monotonic() - started < timeout_s + 3
    return str(refused.value)


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("agent") / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"desk": DEMO_SERVER}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARSY_MCP_CONFIG", str(path))
        yield


def test_a_call_goes_its_whole_way_over_tls(
    port: int, authority: Authority, client_certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    worker = Worker(tmp_path, {"desk": DEMO_SERVER}, url_of(port, authority.path, client_certificate))
    try:
        worker.wait_until_ready()
        with environment_of(worker), ToolExecutor(timeout_s=20) as tools:
            assert tools.list_tools()
            assert tools.execute(ECHO).content == "hello"
            pending = tools.submit(ToolCall(id="2", name="desk.wait", arguments={"seconds": 15}))
            pending.cancel()
            assert pending.result().outcome is Outcome.CANCELLED
    finally:
        worker.stop()


@pytest.mark.usefixtures("configuration")
def test_a_redis_with_a_certificate_of_a_strange_authority_is_not_trusted(
    port: int, directory: Path, client_certificate: tuple[Path, Path]
) -> None:
    stranger = Authority(directory, "stranger")
    assert "certificate verify failed" in refusal(url_of(port, stranger.path, client_certificate, "agent"))


@pytest.mark.usefixtures("configuration")
def test_who_shows_no_certificate_is_not_let_in(port: int, authority: Authority) -> None:
    assert "Redis did not answer" in refusal(url_of(port, authority.path, None, "agent"))


@pytest.mark.usefixtures("configuration")
def test_what_is_not_encrypted_is_not_answered(port: int) -> None:
    assert "Redis did not answer" in refusal(f"redis://agent:{password_of('agent')}@127.0.0.1:{port}/0")


@pytest.mark.usefixtures("configuration")
def test_an_authority_that_is_no_file_is_named(port: int, client_certificate: tuple[Path, Path]) -> None:
    said = refusal(url_of(port, Path("/nowhere/authority.pem"), client_certificate, "agent"))
    assert "No such file" in said or "/nowhere/authority.pem" in said


def test_a_worker_that_does_not_trust_redis_says_why(
    port: int, directory: Path, client_certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    stranger = Authority(directory, "another-stranger")
    worker = Worker(tmp_path, {"desk": DEMO_SERVER}, url_of(port, stranger.path, client_certificate))
    try:
        worker.wait_for_log("certificate verify failed")
    finally:
        worker.stop()
    assert password_of("worker") not in worker.log

"""Redis behind TLS: encrypted, each side knows the other, and a certificate that is wrong is named."""

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tarsy_tasks import Outcome
from tests.chaos.network import Network
from tests.processes import DEMO_SERVER, Worker, free_port
from tests.redis_users import password_of
from tests.security.certificates import Authority
from tests.valkey import Valkey

# Agents are processes of their own here: they hear of Redis until they end, and try to reach it again.
CALL = """
from tarsy_tasks import ToolCall, ToolExecutor
with ToolExecutor(timeout_s=20) as tools:
    assert tools.list_tools()
    print(tools.execute(ToolCall(id="1", name="desk.echo", arguments={"text": "hello"})).content)
    pending = tools.submit(ToolCall(id="2", name="desk.wait", arguments={"seconds": 15}))
    pending.cancel()
    print(pending.result().outcome)
"""
FAIL = """
import time
from tarsy_tasks import ToolCall, ToolExecutor
from tarsy_tasks.errors import BrokerUnavailable
started = time.monotonic()
try:
    ToolExecutor(["desk"], timeout_s=8).execute(ToolCall(id="1", name="desk.echo", arguments={"text": "hello"}))
except BrokerUnavailable as error:
    print(error)
assert time.monotonic() - started < 40, 'it ends with its deadline of 8 s, also on a busy machine'
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory, "authority")


@pytest.fixture(scope="module")
def port(directory: Path, authority: Authority) -> Iterator[int]:
    """Of a Redis that speaks TLS only, and lets in who has a certificate of the authority."""
    with Valkey() as valkey, Network(valkey.port, tls(authority, authority.issue("redis"))).running() as network:
        yield network.port


def tls(authority: Authority, certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.load_cert_chain(*certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture(scope="module")
def client_certificate(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("client")


def url_of(port: int, authority: Path, certificate: tuple[Path, Path] | None, user: str = "admin") -> str:
    url = f"rediss://{user}:{password_of(user)}@127.0.0.1:{port}/0?ssl_cert_reqs=required&ssl_ca_certs={authority}"
    return url + (f"&ssl_certfile={certificate[0]}&ssl_keyfile={certificate[1]}" if certificate else "")


def run_agent(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


REASONS = {
    "an unknown authority": "certificate verify failed",
    "the certificate of another machine": "IP address mismatch",
    "an address that names no authority": "certificate verify failed",
    "a client without a certificate": "Redis did not answer",
    "a client without encryption": "Redis did not answer",
    "a missing authority file": "No such file|/nowhere/authority.pem",
}
"""What is wrong, and what the agent says about it."""


@pytest.fixture(scope="module")
def refusals(port: int, directory: Path, authority: Authority, client_certificate: tuple[Path, Path]) -> dict[str, str]:
    """What agents say whose connection is not safe: all at once, to save time; each test looks at one."""
    config = directory / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"desk": DEMO_SERVER}}))
    elsewhere = tls(authority, authority.issue("elsewhere", address="127.0.0.2"))
    with Network(free_port(), elsewhere).running() as network, ThreadPoolExecutor() as threads:
        urls = {
            "an unknown authority": url_of(port, Authority(directory, "unknown").path, client_certificate, "agent"),
            "the certificate of another machine": url_of(network.port, authority.path, client_certificate, "agent"),
            "an address that names no authority": f"rediss://agent:{password_of('agent')}@127.0.0.1:{port}/0",
            "a client without a certificate": url_of(port, authority.path, None, "agent"),
            "a client without encryption": f"redis://agent:{password_of('agent')}@127.0.0.1:{port}/0",
            "a missing authority file": url_of(port, Path("/nowhere/authority.pem"), client_certificate, "agent"),
        }
        environments = [{"TARSY_REDIS_URL": url, "TARSY_MCP_CONFIG": str(config)} for url in urls.values()]
        return dict(zip(urls, threads.map(lambda environment: run_agent(FAIL, environment), environments), strict=True))


def test_a_call_goes_its_whole_way_over_tls(
    port: int, authority: Authority, client_certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    worker = Worker(tmp_path, {"desk": DEMO_SERVER}, url_of(port, authority.path, client_certificate))
    try:
        worker.wait_until_ready()
        assert run_agent(CALL, worker.environment_of("agent")).split() == ["hello", Outcome.CANCELLED]
    finally:
        worker.stop()


@pytest.mark.parametrize("what", REASONS)
def test_an_unsafe_connection_is_refused_with_the_reason(refusals: dict[str, str], what: str) -> None:
    assert re.search(REASONS[what], refusals[what]), refusals[what]


def test_a_worker_that_does_not_trust_redis_says_why(
    port: int, directory: Path, client_certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    unknown = Authority(directory, "another-unknown")
    worker = Worker(tmp_path, {"desk": DEMO_SERVER}, url_of(port, unknown.path, client_certificate))
    try:
        worker.wait_for_log("certificate verify failed")
    finally:
        worker.stop()
    assert password_of("worker") not in worker.log

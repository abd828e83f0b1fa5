"""One worker for all tests of adapters, with a server of each kind; and a provider for those that make requests."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tarsy_tasks import ToolExecutor
from tests.adapters.provider import Provider, provider_on_loopback
from tests.conftest import StartWorker, run_workers
from tests.processes import DEMO_SERVER

UNUSUAL = str(Path(__file__).parents[1] / "servers" / "unusual_tools.py")


@pytest.fixture(scope="package")
def start_worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    yield from run_workers(redis_url, tmp_path_factory)


@pytest.fixture(scope="package", autouse=True)
def worker(start_worker: StartWorker) -> None:
    start_worker(
        {
            "desk": {**DEMO_SERVER, "instructions": "Be brief."},
            "unusual": {"command": sys.executable, "args": [UNUSUAL]},
            "many": {"command": sys.executable, "args": [UNUSUAL, "500"]},
            "gated": {**DEMO_SERVER, "approval": "always"},
        }
    )


@pytest.fixture(autouse=True)
def _event_loop() -> Iterator[None]:
    """What runs an agent synchronously takes the event loop of the thread, or makes one, and leaves it open."""
    own = asyncio.new_event_loop()
    asyncio.set_event_loop(own)
    yield
    own.close()
    with suppress(RuntimeError):  # there is none
        asyncio.get_event_loop_policy().get_event_loop().close()
    asyncio.set_event_loop(None)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with provider_on_loopback() as provider:
        yield provider
        assert not provider.script, "answers that nobody asked for"


@pytest.fixture
def desk() -> Iterator[ToolExecutor]:
    with ToolExecutor(["desk"], timeout_s=20) as tools:
        yield tools


@pytest.fixture
def unusual() -> Iterator[ToolExecutor]:
    with ToolExecutor(["unusual"], timeout_s=20) as tools:
        yield tools

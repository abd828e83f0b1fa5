"""Fixtures: one Valkey for the run, workers per module, and a check that nothing is left behind."""

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import settings

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import PARTS
from tests import warm_start
from tests.plants import find_leaks_in_redis, know
from tests.processes import Worker, environment_of, own_children, wait_until
from tests.redis_users import password_of
from tests.servers import hostile_words, misbehaving_stdio
from tests.valkey import Valkey

# Two cores are shared by servers, workers and tests: how long one example takes says nothing.
settings.register_profile("tarsy", deadline=None)
settings.load_profile("tarsy")

StartWorker = Callable[..., Worker]

_LAST_LONG_MODULE = 0.8
"""When it begins, as a share of all modules."""
_OWNED_BY_KOMBU = "_kombu."
"""Keys that kombu keeps without an expiry, one a queue."""
_HOLDS_ARGUMENTS = (keys.queue(""), keys.UNACKED, keys.dead_letter_key(""))
"""Where arguments lie as the model wrote them, until the call is answered or the message dropped."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The modules of each folder are spread over the run, so that those that wait for processes run beside those that
    compute. The many short ones of the largest folder fill the gaps at its end."""
    folders: dict[Path, dict[Path, list[pytest.Item]]] = {}
    for item in items:
        folders.setdefault(item.path.parent, {}).setdefault(item.path, []).append(item)
    largest = max(map(len, folders.values()), default=0)
    places = [
        (number / len(modules) * (1 if len(modules) == largest else _LAST_LONG_MODULE), tests)
        for modules in folders.values()
        for number, tests in enumerate(modules.values())
    ]
    items[:] = [test for _, tests in sorted(places, key=itemgetter(0)) for test in tests]


def pytest_collection_finish() -> None:
    """What has been collected stays: no later collection of garbage has to visit it."""
    gc.collect()
    gc.freeze()


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell script has started the suite in the background: what the suite starts would ignore SIGINT, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

know("of a misbehaving server", misbehaving_stdio.SECRET)
know("of a server that says HTML", hostile_words.SECRET)
for _user in (*PARTS, "agent"):
    know(f"broker, of {_user}", password_of(_user))


_addresses: list[str] = []
"""Of the Valkey of the run, once a test has asked for it."""


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """As the tests themselves see it; whatever else looks at it has a user of its own, with the rules that it needs."""
    with Valkey() as valkey:
        _addresses.append(f"{valkey.connection_url}/0")
        yield _addresses[-1]
        _addresses.clear()


@pytest.fixture(scope="module", autouse=True)
def _redis_is_empty() -> Iterator[None]:
    """No module finds what an earlier one left in Redis, such as the alerts of its workers. As the first fixture of a
    module it ends last, when all that the module started has stopped."""
    yield
    for address in _addresses:
        with redis.Redis.from_url(address) as client:
            client.flushall()


@pytest.fixture(scope="module")
def table(redis_url: str) -> Iterator[Any]:
    """Redis as it is, with what workers and agents keep there."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def client(redis_url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Redis, for a test that writes to it itself: emptied afterwards. A key without an expiry fails the test, unless it
    is marked `keeps_keys`."""
    with redis.Redis.from_url(redis_url) as client:
        yield client
        # What Flower of another test declares when it ends is not this test's.
        left = [key for key in client.keys() if client.ttl(key) == -1 and not key.startswith(_OWNED_BY_KOMBU.encode())]
        client.flushall()
        assert not left or request.node.get_closest_marker("keeps_keys"), f"keys without an expiry: {left}"


@pytest.fixture(scope="session", autouse=True)
def _no_process_left() -> Iterator[None]:
    with warm_start.running():
        yield
    left = own_children()
    assert not left, f"the suite left processes behind: {left}"


@pytest.fixture(scope="module")
def start_worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """Starts workers that live as long as the module; the first one's environment is the agent's."""
    yield from run_workers(redis_url, tmp_path_factory)


def run_workers(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """What `start_worker` is, for a fixture of another scope."""
    client = redis.Redis.from_url(redis_url)
    with ExitStack() as stack:
        started: list[Worker] = []

        def start(servers: dict[str, Any], *, wait: bool = True, **options: Any) -> Worker:
            directory: Path = tmp_path_factory.mktemp("worker")
            worker = Worker(directory, servers, redis_url, name=f"w{len(started)}", **options)
            stack.enter_context(worker)
            if not started:
                stack.enter_context(environment_of(worker))
            started.append(worker)
            if wait:
                worker.wait_until_ready()
            return worker

        yield start
        for worker in started:
            worker.ask_to_stop()
    names = [key.decode() for key in client.keys() if client.ttl(key) == -1]
    left = [name for name in names if not name.startswith(_OWNED_BY_KOMBU) and name != keys.QUEUES]
    leaks = {key: found for key, found in find_leaks_in_redis(client).items() if not key.startswith(_HOLDS_ARGUMENTS)}
    denied = client.acl_log()
    client.acl_log_reset()
    client.flushall()
    client.close()
    assert not left, f"keys without an expiry were left in Redis: {left}"
    assert not leaks, f"secrets can be read in Redis: {leaks}"
    assert not denied, f"some part of the deployment was denied what it needs: {denied}"


__all__ = ["StartWorker", "run_workers", "wait_until"]

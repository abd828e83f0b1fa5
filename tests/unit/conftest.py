"""Fixtures for configuration files, and an application."""

import pytest

from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.config import load_config
from tarsy_tasks.errors import ConfigError


@pytest.fixture(scope="module")
def config_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("config")


@pytest.fixture
def load_text(tmp_path):
    """Load a text as a configuration file."""

    def load(text, name="mcp.json"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(path)

    return load


@pytest.fixture
def config_problems(load_text, tmp_path):
    """The lines of the error for a text, without the directory."""

    def load_broken(text, name="mcp.json"):
        with pytest.raises(ConfigError) as caught:
            load_text(text, name)
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return load_broken


@pytest.fixture
def app(redis_url):
    """An application on the Redis of the run."""
    with build_app({"broker_url": redis_url, "result_backend": redis_url}) as app:
        yield app


@pytest.fixture
def table(client):
    """The in-flight table in the Redis of the test's `client`."""
    exchange = RedisExchange(client.connection_pool)
    return Deliveries(lambda: exchange)

"""The environment variables of the worker that the process of a stdio server inherits."""

from typing import Any

import pytest
from pydantic import ValidationError

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.config.inheritance import Inheritance

ENVIRON = {
    "PATH": "/bin",
    "HOME": "/home/u",
    "LC_ALL": "C.UTF-8",
    "PROXY": "http://p",
    "MINE_TOKEN": "1",
    "OTHER_TOKEN": "2",
    "OTHER_TOKEN_FILE": "/run/secrets/other",
    "SHARED_TOKEN": "3",
    "AWS_REGION": "eu",
    "AWS_PROFILE": "p",
}
BROKER = {
    "TARSY_REDIS_URL": "redis://h",
    "TARSY_ALERT_WEBHOOK_SECRET": "s",
    "CELERY_BROKER_URL": "redis://h",
    "REDIS_PASSWORD": "hunter2",
    "REDISCLI_AUTH": "hunter2",
    "FLOWER_BASIC_AUTH": "u:p",
    "BROKER_URL": "redis://h",
    "APP_QUEUE": "redis://:hunt%65r2@h:6379/0",
    "APP_QUEUE_TWIN": "rediss://me:hunter2@h:6380/3",
    "APP_QUEUE_PASSWORD": "hunter2",
}


def server(name: str, **keys: Any) -> ServerConfig:
    return ServerConfig.model_validate({"name": name, "command": "x", **keys})


OTHER = server("other", env={"T": "${OTHER_TOKEN}", "S": "${SHARED_TOKEN}"}, cwd="${HOME}")


def inherited(**keys: Any) -> set[str]:
    own = server("own", env={"T": "${MINE_TOKEN}", "S": "${SHARED_TOKEN}"}, **keys)
    inheritance = Inheritance([own, OTHER], ["redis://:hunt%65r2@h:6379/0", "redis://h2/0"])
    environ = inheritance.environment_for(own, ENVIRON | BROKER)
    assert all(environ[name] == ENVIRON[name] for name in environ)
    return set(environ)


def test_broker_credentials_and_others_secrets_are_kept_back() -> None:
    assert inherited() == ENVIRON.keys() - {"OTHER_TOKEN", "OTHER_TOKEN_FILE"}


def test_a_server_may_inherit_little_or_named_variables() -> None:
    basic = {"PATH", "HOME", "LC_ALL"}
    assert inherited(inherit_env="minimal") == basic
    assert inherited(inherit_env=["AWS_*", "SHARED_TOKEN"]) == {*basic, "AWS_REGION", "AWS_PROFILE", "SHARED_TOKEN"}
    assert inherited(inherit_env=[]) == basic
    assert inherited(inherit_env=["*"]) == ENVIRON.keys() - {"OTHER_TOKEN", "OTHER_TOKEN_FILE"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("some", "found a string, expected `all`, `minimal` or a list of names"),
        (5, "found a number, expected `all`"),
        (["PATH", "TARSY_REDIS_URL"], "set it in `env` if the server needs it"),
        (["redis_url"], "belongs to the worker and is not inherited"),
    ],
)
def test_an_invalid_inherit_env_is_an_error_with_the_remedy(value: Any, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        server("own", inherit_env=value)
    assert text in str(caught.value)

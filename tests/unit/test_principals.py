"""Who sent a message: names of agents, their queues, and what names nobody."""

import pytest

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.principals import bound_agent_of, is_agent_name, principal_of

NO_NAMES = (
    "",
    "a" * 65,
    "sré",
    "ѕre",
    "s re",
    "a:b",
    "*",
    "sre\n",
    "../x",
    "x.check",
    "anonymous",
    "agent",
    "operator",
)


@pytest.mark.parametrize("name", ["sre", "SRE", "a" * 64, "team.sre-1_x", ".", "check"])
def test_an_agent_is_its_redis_user(name: str) -> None:
    assert bound_agent_of(f"redis://{name}:password@host:6379/0") == name
    queue = keys.agent_queue("k8s", name)
    assert principal_of(queue) == name
    assert keys.server_of_queue(queue) == "k8s"
    assert keys.shared_queue(queue) == keys.queue("k8s")


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_of_an_agent_is_nobody(name: str) -> None:
    assert not is_agent_name(name)


@pytest.mark.parametrize(
    "url",
    ["redis://host/0", "redis://:password@host/0", "redis://default:p@host", "redis://s%C3%A9:p@host", "redis://["],
)
def test_a_url_without_an_agent_is_anonymous(url: str) -> None:
    assert bound_agent_of(url) is None


def test_a_user_in_a_url_may_be_encoded() -> None:
    assert bound_agent_of("redis://team%2Esre:p@host") == "team.sre"


def test_the_queue_says_more_than_the_signature() -> None:
    assert principal_of("mcp.k8s:a:sre", "dev") == "sre"
    assert principal_of("mcp.k8s", "dev") == "dev"
    assert principal_of("mcp.k8s") == principal_of("") == "anonymous"


def test_an_agent_has_no_queue_of_checks() -> None:
    assert not keys.is_check_queue("mcp.k8s:a:x.check")
    assert keys.is_check_queue("mcp.k8s.check")

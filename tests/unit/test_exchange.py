"""Commands that go out together, whatever happens to the connection."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tarsy_tasks.broker.exchange import RedisExchange
from tests.processes import free_port, wait_until


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client
        client.delete("counter", "text")


def test_replies_come_in_the_order_of_the_commands(client: redis.Redis) -> None:
    exchange = RedisExchange(client.connection_pool)
    assert exchange.execute(("SET", "counter", 1, "EX", 60), ("INCR", "counter"), ("GET", "counter"))[1:] == [2, b"2"]


def test_an_error_reply_leaves_the_connection_in_step(client: redis.Redis) -> None:
    exchange = RedisExchange(client.connection_pool)
    with pytest.raises(ResponseError):
        exchange.execute(("SET", "text", "x", "EX", 60), ("INCR", "text"), ("GET", "text"))
    assert exchange.execute(("GET", "text")) == [b"x"]


def test_a_lost_connection_is_replaced(client: redis.Redis) -> None:
    exchange = RedisExchange(client.connection_pool)
    (own_id,) = exchange.execute(("CLIENT", "ID"))
    assert client.execute_command("CLIENT KILL", "ID", own_id) == 1
    assert exchange.execute(("PING",)) in ([b"PONG"], [True])


def test_threads_never_get_each_others_replies(client: redis.Redis) -> None:
    exchange = RedisExchange(client.connection_pool)
    with ThreadPoolExecutor(16) as threads:
        replies = list(threads.map(lambda number: exchange.execute(("ECHO", number)), range(500)))
    assert replies == [[str(number).encode()] for number in range(500)]


def test_after_a_rush_only_a_few_connections_are_kept(client: redis.Redis, redis_url: str) -> None:
    exchange = RedisExchange(redis.ConnectionPool.from_url(redis_url, client_name="rush"))

    def connections() -> int:
        return sum(each["name"] == "rush" for each in client.client_list())

    with ThreadPoolExecutor(40) as threads:
        # They all wait in Redis at once, so each needs a connection of its own.
        rush = [threads.submit(exchange.execute, ("BLPOP", f"nothing {number}", 0)) for number in range(40)]
        wait_until(lambda: connections() == 40, "all have a connection")
        for number in range(40):
            client.lpush(f"nothing {number}", "now")
        assert len([each.result() for each in rush]) == 40
    wait_until(lambda: connections() <= 16, "most are closed")
    assert exchange.execute(("PING",)) in ([b"PONG"], [True])
    exchange.close_idle()


FORKS = """
import os, sys, redis
from tarsy_tasks.broker.exchange import RedisExchange

exchange = RedisExchange(redis.ConnectionPool.from_url(sys.argv[1]))
(before,) = exchange.execute(("CLIENT", "ID"))
child = os.fork()
(own,) = exchange.execute(("CLIENT", "ID"))
if not child:
    os._exit(own == before)
_, status = os.waitpid(child, 0)
(after,) = exchange.execute(("CLIENT", "ID"))
sys.exit(os.waitstatus_to_exitcode(status) or after != before)
"""


def test_a_child_of_a_fork_does_not_read_its_parents_replies(redis_url: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, redis_url], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_without_redis_it_is_a_connection_error() -> None:
    pool = redis.ConnectionPool.from_url(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(RedisConnectionError):
        RedisExchange(pool).execute(("PING",))

"""One connection of an event loop: replies and messages of a channel, whatever happens to the connection."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError

from tarsy_tasks.broker.async_exchange import AsyncRedisExchange, Subscription
from tests.processes import until
from tests.redis_users import as_user

CHANNEL = "tarsy:replies:test"


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client
        client.flushall()


class Heard(list[str]):
    """What was heard in the channel, and that the connection was lost."""

    def subscription(self, channel: str = CHANNEL) -> Subscription:
        command = "SUBSCRIBE", channel
        return Subscription(command, lambda message: self.append(message.decode()), lambda _: self.append("lost"))


def run(url: str, heard: Heard, act: Callable[[AsyncRedisExchange], Awaitable[None]], channel: str = CHANNEL) -> None:
    async def acted() -> None:
        exchange = AsyncRedisExchange(lambda: redis.ConnectionPool.from_url(url), heard.subscription(channel))
        try:
            await act(exchange)
        finally:
            exchange.close()

    asyncio.run(acted())


def test_messages_and_replies_do_not_mix(redis_url: str, client: redis.Redis) -> None:
    heard = Heard()

    async def act(exchange: AsyncRedisExchange) -> None:
        async def ask(number: int) -> None:
            replies = await exchange.execute(("PUBLISH", CHANNEL, number), ("ECHO", number))
            assert replies == [1, str(number).encode()]

        await asyncio.gather(*map(ask, range(1000)))
        await until(lambda: len(heard) == 1000)

    run(redis_url, heard, act)
    assert heard == [*map(str, range(1000)), "lost"]


def test_it_subscribes_again_when_the_connection_was_lost(redis_url: str, client: redis.Redis) -> None:
    heard = Heard()

    async def act(exchange: AsyncRedisExchange) -> None:
        [own_id] = await exchange.execute(("CLIENT", "ID"))
        client.execute_command("CLIENT KILL", "ID", own_id)
        await until(lambda: heard == ["lost"])
        assert not exchange.is_open
        await exchange.open()
        client.publish(CHANNEL, "again")
        await until(lambda: heard == ["lost", "again"])

    run(redis_url, heard, act)


def test_an_error_leaves_the_connection_in_step(redis_url: str, client: redis.Redis) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        with pytest.raises(ResponseError):
            await exchange.execute(("SET", "text", "x"), ("INCR", "text"), ("GET", "text"))
        assert await exchange.execute(("GET", "text")) == [b"x"]

    run(redis_url, Heard(), act)


def test_a_channel_that_is_refused_opens_no_connection(redis_url: str, client: redis.Redis) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        with pytest.raises(NoPermissionError):
            await exchange.execute(("PING",))
        assert not exchange.is_open

    run(as_user(redis_url, "agent"), Heard(), act, channel="/0.celery.pidbox")
    client.acl_log_reset()


def test_commands_of_one_turn_are_few_writes(redis_url: str, client: redis.Redis) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        await exchange.open()
        before = client.info("stats")["total_reads_processed"]
        await asyncio.gather(*(exchange.execute(("ECHO", number)) for number in range(100)))
        # One of them is the question.
        assert client.info("stats")["total_reads_processed"] - before <= 3

    run(redis_url, Heard(), act)


def test_what_is_large_has_more_time(redis_url: str, client: redis.Redis) -> None:
    """It may take longer on its way than Redis may take for an answer."""
    heard = Heard()

    async def act(exchange: AsyncRedisExchange) -> None:
        await exchange.open()
        client.client_pause(1500)
        replies = await asyncio.gather(
            exchange.execute(("SET", "large", b"x" * 5_000_000)), exchange.execute(("ECHO", "x"))
        )
        assert replies == [[b"OK"], [b"x"]]
        assert heard == []

    run(f"{redis_url}?socket_timeout=0.5", heard, act)


def test_a_program_that_ends_opens_no_connection(redis_url: str) -> None:
    async def act(exchange: AsyncRedisExchange) -> None:
        threads = ThreadPoolExecutor()
        threads.shutdown()
        asyncio.get_running_loop().set_default_executor(threads)
        with pytest.raises(RedisConnectionError, match="after shutdown"):
            await exchange.open()

    run(redis_url, Heard(), act)

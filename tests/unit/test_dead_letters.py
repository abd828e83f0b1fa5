"""Dead letters are shown, retried or dropped, also damaged ones."""

import base64
import json
import os
import time
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import dead_letters, keys
from tarsy_tasks.broker.dead_letters import DamagedMessage
from tarsy_tasks.broker.sweep import DEAD_LETTER_TTL_S
from tarsy_tasks.masking.edits import MASK
from tests.cli.commands import run_command

pytestmark = pytest.mark.keeps_keys
QUEUE = "mcp.desk"
CALL = {"v": 1, "call_id": "c1", "agent_id": "sre", "deadline": 5.0, "timeout_s": 7.0}


def message(args: Any = ("desk", "order", '{"item": "lamp"}', CALL), kwargs: Any = None) -> dict[str, Any]:
    body = json.dumps([args, kwargs or {}, None]).encode()
    return {
        "body": base64.b64encode(body).decode(),
        "headers": {"task": "tarsy.call_tool", "id": "a", "garbage_at": 9.0, "expires": "2020-01-01T00:00:00"},
        "properties": {"body_encoding": "base64", "delivery_tag": "a"},
        "content-type": "application/json",
    }


def add_dead_letter(client: redis.Redis, tag: str, text: str | bytes | None = None, at: float | None = None) -> None:
    entry = f"{QUEUE}\n9.000\n{json.dumps(message())}" if text is None else text
    client.set(keys.dead_letter_key(tag), entry, ex=DEAD_LETTER_TTL_S)
    client.zadd(keys.DEAD_LETTERS, {tag: time.time() if at is None else at})


def test_a_message_is_described_without_its_arguments(client: redis.Redis) -> None:
    add_dead_letter(client, "a")
    found = dead_letters.load(client, "a")
    assert found is not None
    assert (found.queue, found.task, found.tool, found.damage) == (QUEUE, "tarsy.call_tool", "desk.order", None)
    assert found.caller == {"call_id": "c1", "agent_id": "sre"}
    assert "lamp" not in repr(found)
    assert dead_letters.load_arguments(client, "a") == '{"item": "lamp"}'
    assert dead_letters.load(client, "b") is None


def test_the_newest_come_first_and_no_more_than_asked_for(client: redis.Redis) -> None:
    for number in range(5):
        add_dead_letter(client, str(number), at=number)
    client.delete(keys.dead_letter_key("1"))  # its time was over
    found, total = dead_letters.load_latest(client, 4)
    assert ([each.id for each in found], total) == (["4", "3", "2"], 5)


def test_of_a_message_that_is_large_a_list_reads_only_the_head(client: redis.Redis) -> None:
    large = message(args=["desk", "order", "x" * 1024 * 1024, CALL])
    add_dead_letter(client, "a", f"{QUEUE}\n\n{json.dumps(large)}")
    [found], _ = dead_letters.load_latest(client, 10)
    assert (found.queue, found.tool, found.damage) == (QUEUE, None, None)
    assert found.size_bytes > 1024 * 1024
    one = dead_letters.load(client, "a")
    assert one is not None
    assert one.tool == "desk.order"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"mcp.desk\n",
        b"mcp.desk\n\nnonsense",
        b"mcp.desk\n\n[]",
        b'mcp.desk\n\n{"body": 1, "headers": {}, "properties": {}}',
        b'mcp.desk\n\n{"body": "{}", "headers": {}, "properties": {}}',
        b'mcp.desk\n\n{"body": "&&&", "headers": {}, "properties": {"body_encoding": "base64"}}',
        b'mcp.desk\n\n{"body": "[[], [], null]", "headers": {}, "properties": {}}',
        b"mcp.desk\n\n" + b"[" * 100_000,
        b'\xff\n\n{"body": "[[], {}, null]", "headers": {}, "properties": {}}',
    ],
)
def test_damaged_dead_letters_are_shown_until_they_are_dropped(client: redis.Redis, text: bytes) -> None:
    add_dead_letter(client, "a", text)
    [found], _ = dead_letters.load_latest(client, 10)
    assert found.damage
    with pytest.raises(DamagedMessage):
        dead_letters.retry(client, "a")
    assert client.get(keys.dead_letter_key("a")) == text
    assert dead_letters.drop(client, "a")
    assert dead_letters.load_latest(client, 10) == ([], 0)


def test_a_key_of_another_kind_is_damaged_too(client: redis.Redis) -> None:
    client.hset(keys.dead_letter_key("a"), "x", "y")
    client.zadd(keys.DEAD_LETTERS, {"a": 1})
    [found], _ = dead_letters.load_latest(client, 10)
    assert "not hold a string" in (found.damage or "")
    with pytest.raises(DamagedMessage):
        dead_letters.retry(client, "a")
    assert dead_letters.drop(client, "a")


def test_arguments_of_foreign_producers_are_shown_if_possible(client: redis.Redis) -> None:
    strange = message(args=[["no text"], None, 5, "no object"], kwargs={"more": "x"})
    add_dead_letter(client, "a", f"{QUEUE}\n\n{json.dumps(strange)}")
    found = dead_letters.load(client, "a")
    assert found is not None
    assert (found.damage, found.caller) == (None, {})
    assert dead_letters.load_arguments(client, "a") == 5
    assert dead_letters.retry(client, "a")


def test_names_are_masked_before_they_are_cut(client: redis.Redis, redis_url: str) -> None:
    token = f"ghp_{'a1B2' * 9}"
    for start in ("", "x" * 190 + " "):
        call = CALL | {"agent_id": start + token}
        add_dead_letter(client, "a", f"{QUEUE}\n\n{json.dumps(message(args=['desk', start + token, '', call]))}")
        environment = {**os.environ, "TARSY_REDIS_URL": redis_url}
        done = run_command("dead-letters", "show", "a", "--json", environment=environment)
        shown = json.loads(done.stdout)
        assert shown["caller"]["agent_id"] == (start + MASK)[:200]
        assert "ghp_" not in done.stdout


def test_a_name_with_line_breaks_shows_no_other_field(client: redis.Redis, redis_url: str) -> None:
    forged = message(args=["desk", "order\ndamage: none", "", CALL])
    add_dead_letter(client, "a", f"{QUEUE}\n\n{json.dumps(forged)}")
    done = run_command("dead-letters", "show", "a", environment={**os.environ, "TARSY_REDIS_URL": redis_url})
    assert "tool: desk.order\\ndamage: none" in done.stdout.splitlines()


@pytest.mark.parametrize("by_name", [False, True])
def test_what_is_given_back_is_as_new_and_has_no_deadline(client: redis.Redis, by_name: bool) -> None:
    names = ("server", "tool", "arguments", "call")
    values = ("desk", "order", "x", dict(CALL))
    sent = message([], dict(zip(names, values, strict=True))) if by_name else message(values)
    add_dead_letter(client, "a", f"{QUEUE}\n9.000\n{json.dumps(sent)}")
    client.hset(keys.call_marker("a"), mapping={"mark": "begun", "owner": "dead 3", "deliveries": 3})
    client.set(keys.result_key("a"), "dead letter")
    client.lpush(QUEUE, "another")
    assert dead_letters.retry(client, "a")
    assert not dead_letters.retry(client, "a"), "it is given back once"
    assert not client.exists(keys.dead_letter_key("a"), keys.call_marker("a"), keys.result_key("a"), keys.DEAD_LETTERS)
    first, text = client.rpop(QUEUE), client.rpop(QUEUE)
    assert first == b"another"
    assert client.hget(keys.UNACKED, "a") == f"{QUEUE}\n\n".encode() + text
    assert client.zscore(keys.waiting_key(QUEUE), "a")
    again = json.loads(text)
    args, kwargs, _ = json.loads(base64.b64decode(again["body"]))
    call = kwargs["call"] if by_name else args[3]
    assert call == {name: value for name, value in CALL.items() if name != "deadline"}
    assert again["headers"] == {"task": "tarsy.call_tool", "id": "a", "expires": None}
    assert {name: again[name] for name in ("properties", "content-type")} == {
        name: sent[name] for name in ("properties", "content-type")
    }


def test_a_dead_letter_is_not_requeued_twice(client: redis.Redis) -> None:
    add_dead_letter(client, "a")
    client.hset(keys.UNACKED, "a", "entry")
    assert not dead_letters.retry(client, "a")
    assert client.exists(keys.dead_letter_key("a"))

"""An agent that may call one server only, and writes what it likes into its queue for that server."""

import json
import uuid
from typing import Any

import redis

from tarsy_tasks.broker import keys

__all__ = ["DESK", "FAILING", "GROUP_STATE", "Attacker", "attacks", "composite", "signature"]

GROUP_STATE = "celery-taskset-meta-"
FAILING = ("tarsy.list_tools", [])
"""A task that fails in Celery's sense: the name of the server is missing."""


def signature(server: str, queue: str = "", **options: Any) -> dict[str, Any]:
    """A call as Celery serializes a signature."""
    return {
        "task": "tarsy.call_tool",
        "args": [server, "echo", {"text": "x"}],
        "kwargs": {},
        "options": {"queue": queue or keys.queue(server), **options},
        "subtask_type": None,
        "immutable": True,
    }


DESK = signature("desk")
EAGER = {"delivery_info": {"is_eager": True}}


def composite(kind: str, **kwargs: Any) -> dict[str, Any]:
    """A group, chain, chord or map that says that it is a tool call."""
    return {**DESK, "subtask_type": kind, "kwargs": kwargs}


def attacks(vault: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Messages that are to have this signature run; `size` is what the attacker writes as the size of a chord."""

    def errback_of(body: dict[str, Any]) -> dict[str, Any]:
        """In a chord whose header fails."""
        return {"embed": {"chord": body}, "size": "1", "fails": True}

    elsewhere = {"queue": "mcp.desk", "exchange": "", "routing_key": "mcp.vault"}
    linked = signature("desk", link_error=[vault])
    group = composite("group", tasks=[vault])
    chord = composite("chord", header=[], body=vault, kwargs={})
    return {
        "errback that is a group": {"embed": {"errbacks": [group]}, "fails": True},
        "errback that is a chain": {"embed": {"errbacks": [composite("chain", tasks=[vault])]}, "fails": True},
        "errback that is a chord": {"embed": {"errbacks": [chord]}, "fails": True},
        "errback that runs here": {"embed": {"errbacks": [vault], **EAGER}, "fails": True},
        "errback of this queue that runs here": {
            "embed": {"errbacks": [{**vault, "options": {"queue": "mcp.desk"}}], **EAGER},
            "fails": True,
        },
        "errback in the headers": {"embed": {}, "headers": {"errbacks": [vault]}, "fails": True},
        "callback in the headers": {"embed": {}, "headers": {"callbacks": [vault]}},
        "chain in the headers": {"embed": {}, "headers": {"chain": [vault]}},
        "chord in the headers": {"embed": {}, "headers": {"chord": vault}, "size": "1"},
        "callback that is a group": {"embed": {"callbacks": [group]}},
        "callback that is a chord": {"embed": {"callbacks": [chord]}},
        "step of a chain that is a group": {"embed": {"chain": [group]}},
        "chain of a step of a chain": {"embed": {"chain": [signature("desk", chain=[vault])]}},
        "callback of a callback of a callback": {
            "embed": {"callbacks": [signature("desk", link=[signature("desk", link=[group])])]}
        },
        "chord body that is a group": {"embed": {"chord": group}, "size": "1"},
        "chain of a chord body": {"embed": {"chord": signature("desk", chain=[vault])}, "size": "1"},
        "errback of a chord body": errback_of(linked),
        "errback of a chord body, alone": errback_of(signature("desk", link_error=vault)),
        "errback of a chord body that runs here": errback_of({**linked, **EAGER}),
        "errback of a chord body that is a group": errback_of(
            {**composite("group", tasks=[DESK]), "options": {"queue": "mcp.desk", "link_error": [vault]}}
        ),
        "errback of a task of such a group": errback_of(composite("group", tasks=[linked])),
        "errback of a chord body that is a chord": errback_of(composite("chord", header=[], body=linked, kwargs={})),
        "errback of a message that has expired": {
            "embed": {"chord": {**linked, **EAGER}},
            "size": "1",
            "headers": {"expires": "2020-01-01T00:00:00+00:00"},
        },
        "map": {"embed": {"callbacks": [composite("xstarmap", task=vault, it=[vault["args"]])]}},
        "another exchange": {"embed": {"callbacks": [{**vault, "options": elsewhere}]}},
        "another server in this queue": {"embed": {"callbacks": [{**vault, "options": DESK["options"]}]}},
        "another identity": {"embed": {"chain": [vault], "id": "x", "delivery": None}},
    }


class Attacker:
    """Writes messages as its own user of Redis.

    Args:
        client: Redis, as that user.
        name: Of the user.
    """

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.client = client
        self._name = name

    def send(
        self,
        embed: dict[str, Any],
        *,
        task: str = "tarsy.call_tool",
        args: list[Any] | None = None,
        **headers: Any,
    ) -> str:
        """Put a message into its queue for `desk`; its id."""
        task_id = headers.pop("id", None) or str(uuid.uuid4())
        arguments = ["desk", "echo", {"text": "x"}] if args is None else args
        message = {
            "body": json.dumps([arguments, {}, embed]),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {"lang": "py", "task": task, "id": task_id, **headers},
            "properties": {
                "correlation_id": task_id,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": "mcp.desk"},
                "priority": 0,
                "delivery_tag": task_id,
            },
        }
        self.client.lpush(keys.agent_queue("desk", self._name), json.dumps(message))
        self.client.sadd(keys.agents_key("desk"), self._name)
        return task_id

    def end_header(self, size: str = "1") -> str:
        """Write the state of a group that ends with its next part; `size` is what it says of its size. Its id."""
        group_id = str(uuid.uuid4())
        self.client.set(f"{GROUP_STATE}{group_id}.s", size, ex=60)
        return group_id

    def answer_of(self, task_id: str) -> dict[str, Any] | None:
        """What is stored for a task."""
        found = self.client.get(keys.result_key(task_id))
        assert found is None or isinstance(found, bytes)
        return None if found is None else json.loads(found)

"""Limits: how much agents may call, as a policy writes it, and which limits hold for one call.

Owns the rule, and what of it a worker hands to Redis, where everything is counted (`broker.limit_counters`). What a
limit counts has a name, its counter: of what is counted for each agent, server or tool, the names of these. A limit
keeps its counters as long as it is about the same agents and tools, also when its numbers change or other limits come
and go.
"""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from math import ceil
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tarsy_tasks.config.texts import Model
from tarsy_tasks.policy.names import EVERYONE, AgentPattern, ToolPattern, restricts, split_pattern

__all__ = ["AppliedLimits", "Limit", "LimitRule", "Limits", "describe_bytes"]

_UNITS_S = {"s": 1, "min": 60, "h": 3600, "day": 86400}
_RATE = re.compile(rf"([0-9]{{1,9}})/({'|'.join(_UNITS_S)})")
_FASTEST = 10_000
"""Calls per second: what is more, the times of Redis do not tell apart."""
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?) ?(kB|MB|GB|TB|KiB|MiB|GiB|TiB|B)")
_SIZES = {
    **{unit: 1000**n for n, unit in enumerate(("B", "kB", "MB", "GB", "TB"))},
    **{unit: 1024**n for n, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
}
_MOST = 10**15
_LONGEST_COUNTER = 200
_CACHED = 8192
_LONGEST_NAME = 256


def _parse_size(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not (found := _SIZE.fullmatch(value)):
        raise ValueError('not a number of bytes; write it as `50000000`, "50 MB" or "48 MiB"')
    return round(float(found[1]) * _SIZES[found[2]])


def describe_bytes(number: int) -> str:
    """A number of bytes in the units of a policy: 50000000 → 50 MB."""
    unit = next(each for each in ("TB", "GB", "MB", "kB", "B") if number >= _SIZES[each] or each == "B")
    return f"{number / _SIZES[unit]:.3g} {unit}"


_Count = Annotated[int, Field(ge=0, le=_MOST)]


class LimitRule(Model):
    """How much agents may call, together or each of them."""

    agents: list[AgentPattern] = Field(default=[EVERYONE], min_length=1, description="The agents that it is about.")
    tools: list[ToolPattern] = Field(default=[EVERYONE], min_length=1, description="The tools that it is about.")
    each: list[Literal["agent", "server", "tool"]] = Field(
        default_factory=list[Literal["agent", "server", "tool"]],
        description="What has the limit for itself: each agent, each server, each tool, or each of their combinations; "
        "an empty list: all calls that it is about have it together.",
    )
    rate: str | None = Field(
        default=None,
        description="How many calls in which time, as `10/s`, `10/min`, `10/h` or `10/day`; 0 permits no call.",
    )
    burst: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="How many calls of the rate may come at once; the default is what a second brings, at least 1.",
    )
    concurrency: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="How many calls may run at once, in all workers together; 0 permits no call.",
    )
    calls_per_day: _Count | None = Field(
        default=None, description="How many calls on one day, in UTC; 0 permits no call."
    )
    bytes_per_day: Annotated[_Count, BeforeValidator(_parse_size)] | None = Field(
        default=None,
        description="How many bytes of results on one day, in UTC, as a number or as `50 MB`; 0: no call at all.",
    )
    when_over: Literal["reject", "wait"] = Field(
        default="reject",
        description="What happens to a call over the rate or concurrency. reject: it is answered with RATE_LIMITED; "
        "wait: it waits in Redis until its deadline. What is over a quota of the day is rejected.",
    )

    @field_validator("rate")
    @classmethod
    def _validate_rate(cls, rate: str | None) -> str | None:
        if rate is None:
            return None
        if not (found := _RATE.fullmatch(rate)):
            raise ValueError("not a rate; write it as `10/s`, `10/min`, `10/h` or `10/day`")
        if int(found[1]) / _UNITS_S[found[2]] > _FASTEST:
            raise ValueError(f"more than {_FASTEST} calls per second cannot be told apart; leave the rate out")
        return rate

    @field_validator("each")
    @classmethod
    def _validate_each(cls, each: list[str]) -> list[str]:
        if len({*each}) < len(each):
            raise ValueError("a name is there twice; remove one")
        return each

    @model_validator(mode="after")
    def _validate_content(self) -> "LimitRule":
        if self.rate is self.concurrency is self.calls_per_day is self.bytes_per_day is None:
            raise ValueError(
                "it limits nothing; add `rate`, `concurrency`, `calls_per_day` or `bytes_per_day`, or remove it"
            )
        if self.burst is not None and self.rate is None:
            raise ValueError("`burst` is a part of `rate`, which is missing")
        return self

    @property
    def rate_s(self) -> tuple[int, int] | None:
        """How many calls, and in how many seconds; None without a rate."""
        found = _RATE.fullmatch(self.rate) if self.rate is not None else None
        return (int(found[1]), _UNITS_S[found[2]]) if found is not None else None

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of the rate; 0 without a rate, or if it permits none."""
        count, seconds = self.rate_s or (0, 0)
        return seconds / count if count else 0.0

    @property
    def most_at_once(self) -> int:
        """How many calls of the rate may come at once; 0 without a rate."""
        return (self.burst or max(1, ceil(1 / self.interval_s))) if self.interval_s else 0

    @property
    def is_none(self) -> bool:
        """Whether it permits no call at all."""
        rate = self.rate_s
        return 0 in (self.concurrency, self.calls_per_day, self.bytes_per_day) or (rate is not None and rate[0] == 0)

    @property
    def terms(self) -> str:
        """What it permits, in words."""
        if self.is_none:
            return "no call at all"
        burst = f", {self.burst} at once" if self.burst is not None else ""
        found = (
            f"{self.rate}{burst}" if self.rate is not None else "",
            f"{self.concurrency} running" if self.concurrency is not None else "",
            f"{self.calls_per_day} calls a day" if self.calls_per_day is not None else "",
            f"{describe_bytes(self.bytes_per_day)} a day" if self.bytes_per_day is not None else "",
        )
        return "; ".join(filter(None, found))


@dataclass(frozen=True)
class Limit:
    """One limit of a policy.

    Attributes:
        place: Where the policy has it, such as `limits[0]`.
        id: Part of the names of its keys.
    """

    place: str
    id: str
    rule: LimitRule

    def concerns(self, agent: str, server: str, tool: str) -> bool:
        """Whether it is about a call. Look-alikes of names do not escape, as in all that restricts."""
        return restricts(self.rule.agents, agent) and any(
            restricts([server_pattern], server) and restricts([tool_pattern], tool)
            for server_pattern, tool_pattern in map(split_pattern, self.rule.tools)
        )

    def concerns_server(self, server: str) -> bool:
        """Whether it is about tools of a server."""
        return any(restricts([split_pattern(each)[0]], server) for each in self.rule.tools)

    def counter(self, agent: str, server: str, tool: str) -> str:
        """The name of what counts a call."""
        each = self.rule.each
        names = (
            quote(agent, safe="@=,+", errors="surrogatepass") if "agent" in each else "",
            server if "server" in each or "tool" in each else "",
            quote(tool, safe="", errors="surrogatepass") if "tool" in each else "",
        )
        counter = " ".join(filter(None, names)) or EVERYONE
        return counter if len(counter) <= _LONGEST_COUNTER else sha256(counter.encode()).hexdigest()

    @property
    def terms(self) -> dict[str, Any]:
        """What Redis has to know of it: seconds between two calls and how many of them may be saved up, and the other
        numbers."""
        rule = self.rule
        if rule.is_none:
            return {"id": self.id, "none": True}
        terms: dict[str, Any] = {"id": self.id}
        if interval_s := rule.interval_s:
            terms |= {"interval": interval_s, "tolerance": (rule.most_at_once - 1) * interval_s}
        numbers = {"concurrency": rule.concurrency, "calls": rule.calls_per_day, "bytes": rule.bytes_per_day}
        terms |= {name: number for name, number in numbers.items() if number is not None}
        return terms | ({"waits": True} if rule.when_over == "wait" else {})


class AppliedLimits:
    """The limits that hold for the calls of one agent and tool.

    Attributes:
        limits: By id.
        text: What `broker.limit_counters` takes of them.
        charges: What their results are counted for, as `broker.limit_counters` takes it; empty if for nothing.
    """

    def __init__(self, limits: Iterable[Limit], agent: str, server: str, tool: str) -> None:
        counted = [(limit, limit.counter(agent, server, tool)) for limit in limits]
        self.limits = {limit.id: limit for limit, _ in counted}
        self._terms = [{**limit.terms, "counter": counter} for limit, counter in counted]
        self.text = json.dumps(self._terms)
        charges = [[limit.id, counter] for limit, counter in counted if limit.rule.bytes_per_day is not None]
        self.charges = json.dumps(charges) if charges else ""
        self.text_without = lru_cache(16)(self._text_without)

    def _text_without(self, taken: frozenset[str]) -> str:
        """As `text`, if rate and concurrency of some limits were taken when the call was fetched."""
        left = [
            {name: value for name, value in terms.items() if name not in ("interval", "concurrency")}
            if terms["id"] in taken
            else terms
            for terms in self._terms
        ]
        return json.dumps(left)


class Limits:
    """All limits of a policy. It does not change; safe to share between threads."""

    def __init__(self, rules: Iterable[LimitRule]) -> None:
        seen: dict[str, int] = {}
        found: list[Limit] = []
        for number, rule in enumerate(rules):
            scope = json.dumps([sorted({*rule.agents}), sorted({*rule.tools}), sorted(rule.each)])
            nth = seen[scope] = seen.get(scope, -1) + 1
            digest = sha256(f"{nth} {scope}".encode()).hexdigest()[:12]
            found.append(Limit(f"limits[{number}]", digest, rule))
        self.all = tuple(found)
        self._of = lru_cache(_CACHED)(self._find)

    def of(self, agent: str, server: str, tool: str) -> AppliedLimits | None:
        """The limits of a call; None if there are none.

        Args:
            agent: As it was verified.
            tool: As the server lists it.
        """
        find = self._find if len(tool) > _LONGEST_NAME else self._of
        return find(agent, server, tool)

    def _find(self, agent: str, server: str, tool: str) -> AppliedLimits | None:
        found = [limit for limit in self.all if limit.concerns(agent, server, tool)]
        return AppliedLimits(found, agent, server, tool) if found else None

    def build_fetch_terms(self, servers: Collection[str], shared_agent: str | None) -> dict[str, list[dict[str, Any]]]:
        """What can be known of a call by its queue alone, by server: so calls that are over it stay in their queue.

        Args:
            shared_agent: Who sends all that is in the queue of a server; None if that differs.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        for server in servers:
            for limit in self.all:
                rule = limit.rule
                terms = {name: limit.terms[name] for name in _FETCHED if name in limit.terms}
                is_whole = "tool" not in rule.each and any(
                    tool == EVERYONE and restricts([each], server) for each, tool in map(split_pattern, rule.tools)
                )
                if rule.is_none or rule.when_over != "wait" or not is_whole or len(terms) == 1:
                    continue
                everyone, by_agent = EVERYONE in rule.agents, "agent" in rule.each
                if shared_agent is not None:
                    terms["shared"] = restricts(rule.agents, shared_agent)
                else:
                    terms["shared"] = everyone and not by_agent
                if not everyone:
                    terms["agents"] = [_as_lua_pattern(each) for each in rule.agents]
                at_server = server if "server" in rule.each else ""
                found.setdefault(server, []).append({**terms, "by_agent": by_agent, "server": at_server})
        return found


_FETCHED = ("id", "interval", "tolerance", "concurrency")


def _as_lua_pattern(pattern: str) -> str:
    special = {"*": ".*", "?": "."}
    return f"^{''.join(special.get(each, each if each.isalnum() else f'%{each}') for each in pattern.lower())}$"

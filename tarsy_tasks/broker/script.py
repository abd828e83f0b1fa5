"""Lua scripts that Redis runs in one step, with named and typed slots.

Owns how a script is declared and sent: by its digest, and as text to a Redis that does not know it yet. A script is a
text in Lua and the declaration of its slots. Each slot is a local variable in the text, and a keyword for the caller:

    @script("return redis.call('SET', place, text, 'EX', ttl_s)")
    def store(*, place: Key, text: str, ttl_s: int) -> bytes: ...

    store.run(exchange, place="tarsy:place", text="here", ttl_s=60)
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha1
from typing import Annotated, Any, Generic, NamedTuple, ParamSpec, TypeVar, get_type_hints

from redis.exceptions import NoScriptError

from tarsy_tasks.broker.async_exchange import AsyncRedisExchange, Receiver
from tarsy_tasks.broker.exchange import RedisExchange

__all__ = ["NOW", "Key", "KnownKey", "Script", "Table", "constants", "script"]

P = ParamSpec("P")
R = TypeVar("R")

Key = Annotated[str, "KEYS"]
"""A slot for the name of a key: Redis has to know which arguments are keys, for its ACL rules."""
Table = Annotated[Mapping[str, Any] | Sequence[Any], "JSON"]
"""A slot for a mapping or a list, which is a table in Lua."""
KnownKey = str | tuple[Callable[[str], str], str]
"""A key that callers need not give: its name, or what makes it out of a slot's value, and that slot."""

NOW = "local time = redis.call('TIME') local now = time[1] + time[2] / 1000000"
"""The beginning of a script that needs the time of Redis, in seconds."""


class _Kind(NamedTuple):
    """A kind of slot: its types, its value in Lua, with `{}` for the text that Redis hands to the script, and what is
    sent, in Python, with `{}` for the value."""

    types: tuple[type, ...]
    in_lua: str = "{}"
    sent: str = "{}"


_KINDS: dict[Any, _Kind] = {
    Key: _Kind((str, bytes)),
    str: _Kind((str,)),
    str | bytes: _Kind((str, bytes)),
    int: _Kind((int,), "tonumber({})"),
    float: _Kind((int, float), "tonumber({})"),
    bool: _Kind((bool,), "({} == '1')", "int({})"),
    Table: _Kind((dict, list, tuple), "cjson.decode({})", "dumps({})"),
}


def constants(**values: float | str) -> str:
    """The beginning of a script that needs these values, which are the same in every call."""
    return "\n".join(f"local {name} = {json.dumps(value)}" for name, value in values.items())


_JSON_SETTINGS = """
    cjson.decode_max_depth(1000) cjson.decode_invalid_numbers(true)
    cjson.encode_max_depth(1000) cjson.encode_number_precision(14) cjson.encode_sparse_array(false, 2, 10)
    cjson.encode_invalid_numbers(false) cjson.encode_keep_buffer(true)
    if cjson.decode_array_with_array_mt then cjson.decode_array_with_array_mt(false) end
    """
"""The defaults. All scripts of a Redis share them, so anyone who may run a script could change them for the others."""
_NO_WORDS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--.*""")
"""Texts and comments in Lua."""


class Script(Generic[P, R]):
    """One script; `script` makes it out of a declaration, with the same arguments and errors."""

    def __init__(self, declaration: Callable[P, R], text: str, known: Mapping[str, KnownKey], *, grows: bool) -> None:
        self._name = declaration.__name__
        words = set(re.findall(r"\w+", _NO_WORDS.sub("", text)))
        hints = get_type_hints(declaration, include_extras=True)
        slots = inspect.signature(declaration).parameters
        known = {name: key for name, key in known.items() if name in words}
        sources = {key[1] for key in known.values() if not isinstance(key, str)}
        for name in (*slots, *sources):
            if name not in slots or hints[name] not in _KINDS or name not in words | sources:
                raise TypeError(f"script {self._name}: the slot {name} is not declared, not used, or of no known type")
        more = next((name for name, slot in slots.items() if slot.kind is slot.VAR_POSITIONAL), None)
        keys = [name for name in slots if hints[name] == Key and name != more]
        arguments = {name: _KINDS[hints[name]] for name in slots if name not in (*keys, more)}
        lines = [f"local {name} = KEYS[{n}]" for n, name in enumerate((*known, *keys), start=1)]
        if more is not None:
            lines.append(f"local {more} = {{unpack(KEYS, {len(lines) + 1})}}")
        for n, (name, kind) in enumerate(arguments.items(), start=1):
            lines.append(f"local {name} = {kind.in_lua.format(f'ARGV[{n}]')}")
        # With a first line like this a script is refused before its first command, and never in between.
        text = "\n".join([*lines, text])
        settings = _JSON_SETTINGS if "cjson" in text else ""
        self._text = f"#!lua{'' if grows else ' flags=allow-oom'}\n{settings}{text}"
        self._digest = sha1(self._text.encode(), usedforsecurity=False).hexdigest()

        # Every call of a tool takes three scripts: so what puts their values in order is compiled, as in a named tuple.
        self._types = {name: _KINDS[hints[name]].types for name in (*keys, *arguments)}
        builders = {f"build_{name}": key[0] for name, key in known.items() if not isinstance(key, str)}
        check = "({0} if {0}.__class__ in types[{0!r}] else check({0!r}, {0}))"
        checked = {name: check.format(name) for name in self._types}
        sent = [repr(key) if isinstance(key, str) else f"build_{name}({key[1]})" for name, key in known.items()]
        sent += [*(checked[name] for name in keys), "*more"]
        sent += [kind.sent.format(checked[name]) for name, kind in arguments.items()]
        code = f"lambda *more, {', '.join(self._types)}: [{len(known) + len(keys)} + len(more), {', '.join(sent)}]"
        scope = {**builders, "types": self._types, "check": self._check, "dumps": json.dumps}
        self._arrange = eval(code, scope)  # noqa: S307 - all of its names are of the declaration
        self._arrange.__qualname__ = f"script {self._name}"

    def run(self, exchange: RedisExchange, *more: P.args, **slots: P.kwargs) -> R:
        """Run it, and return what it returns.

        Raises:
            TypeError: A slot is missing, unknown or of another type.
            RedisError: As `RedisExchange.execute`.
        """
        arguments = self._arrange(*more, **slots)
        try:
            return exchange.execute(("EVALSHA", self._digest, *arguments))[0]
        except NoScriptError:
            # The first time, and after each restart of Redis.
            return exchange.execute(("EVAL", self._text, *arguments))[0]

    async def run_async(self, exchange: AsyncRedisExchange, *more: P.args, **slots: P.kwargs) -> R:
        """As `run`, from an event loop."""
        arguments = self._arrange(*more, **slots)
        try:
            return (await exchange.execute(("EVALSHA", self._digest, *arguments)))[0]
        except NoScriptError:
            return (await exchange.execute(("EVAL", self._text, *arguments)))[0]

    def send(self, exchange: AsyncRedisExchange, receiver: Receiver, *more: P.args, **slots: P.kwargs) -> None:
        """As `AsyncRedisExchange.send`. A Redis that does not know it yet does not run it: `NoScriptError`."""
        exchange.send(receiver, ("EVALSHA", self._digest, *self._arrange(*more, **slots)))

    def command(self, *more: P.args, **slots: P.kwargs) -> tuple[Any, ...]:
        """The Redis command that runs it, for pipelines and other clients. Raises `TypeError` as `run` does."""
        return ("EVAL", self._text, *self._arrange(*more, **slots))

    def _check(self, name: str, value: Any) -> Any:
        types = self._types[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise TypeError(f"script {self._name}: the slot {name} cannot be a {type(value).__name__}")
        return value


def script(
    *texts: str, known: Mapping[str, KnownKey] | None = None, grows: bool = False
) -> Callable[[Callable[P, R]], Script[P, R]]:
    """Declare a script: a function without a body, whose keyword-only parameters are the slots. A `*` parameter takes
    any number of further keys. What the function says that it returns is believed.

    Args:
        texts: In Lua; they follow one another.
        known: Keys that callers need not give, by slot; the script has those of them that its text uses.
        grows: It stores something new, so a Redis that is full refuses it. All other scripts bring calls to their end,
            and run on a full Redis, too.

    Raises:
        TypeError: A slot is not used in the text, or has a type that no slot can have.
    """
    return lambda declaration: Script(declaration, "\n".join(texts), known or {}, grows=grows)

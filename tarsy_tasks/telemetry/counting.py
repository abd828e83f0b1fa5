"""Adding up what workers count, in memory and in Redis.

`metrics` and `history` define the numbers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from tarsy_tasks.broker.script import Key, Table, constants, script

__all__ = ["add_numbers", "add_up"]


# Adds the numbers to each of the hashes, and sets the texts in the first one. The seconds for which the hashes are kept
# are in the order of the hashes. What does not hold a number or a hash is replaced.
@script(
    constants(most_fields=100_000),  # servers that invent names of tools without end start from zero again
    """
    for position, hash in ipairs(hashes) do
        local kind = redis.call('TYPE', hash).ok
        if kind ~= 'none' and (kind ~= 'hash' or redis.call('HLEN', hash) > most_fields) then
            redis.call('DEL', hash)
        end
        for field, number in pairs(numbers) do
            local reply = redis.pcall('HINCRBY', hash, field, number)
            if type(reply) == 'table' and reply.err then redis.call('HSET', hash, field, number) end
        end
        if position == 1 then
            for field, text in pairs(texts) do redis.call('HSET', hash, field, text) end
        end
        redis.call('EXPIRE', hash, ttls_s[position])
    end
    """,
    grows=True,
)
def add_numbers(*hashes: Key, numbers: Table, texts: Table, ttls_s: Table) -> None: ...


def add_up(all_numbers: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of each number, by name."""
    total: Counter[str] = Counter()
    for numbers in all_numbers:
        total.update(numbers)
    return dict(total)

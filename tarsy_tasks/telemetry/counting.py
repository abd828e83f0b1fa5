"""Adding up what workers count, in memory and in Redis.

`metrics` and `history` define the numbers. One of them is not a sum but a maximum: `LONGEST`.
"""

from collections.abc import Iterable, Mapping

from tarsy_tasks.broker.script import Key, Table, constants, script

__all__ = ["LONGEST", "add_numbers", "add_up"]

LONGEST = "took:longest"
"""The name of the number of which the largest counts."""


# Adds the numbers to each of the hashes, and sets the texts in the first one. The seconds for which the hashes are kept
# are in the order of the hashes. What does not hold a number or a hash is replaced.
@script(
    constants(
        most_fields=100_000,  # servers that invent names of tools without end start from zero again
        longest=f"{LONGEST} ",
    ),
    """
    for position, hash in ipairs(hashes) do
        local kind = redis.call('TYPE', hash).ok
        if kind ~= 'none' and (kind ~= 'hash' or redis.call('HLEN', hash) > most_fields) then
            redis.call('DEL', hash)
        end
        for field, number in pairs(numbers) do
            if string.sub(field, 1, string.len(longest)) == longest then
                local known = tonumber(redis.call('HGET', hash, field) or nil)
                if not known or number > known then redis.call('HSET', hash, field, number) end
            else
                local reply = redis.pcall('HINCRBY', hash, field, number)
                if type(reply) == 'table' and reply.err then redis.call('HSET', hash, field, number) end
            end
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
    """The sum of each number, by name; of `LONGEST` the maximum."""
    total: dict[str, int] = {}
    for numbers in all_numbers:
        for name, number in numbers.items():
            known = total.get(name, 0)
            total[name] = max(known, number) if name == LONGEST else known + number
    return total

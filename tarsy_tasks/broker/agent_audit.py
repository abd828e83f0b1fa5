"""Keeps the stream open in which agents record calls.

Owns the one script that repairs it, and the log of what it did. Redis gives an entry an id above that of the one
before. So after an entry with an id in the far future, which any agent may write, all later ones have such ids; and
after the highest of all ids it takes no more. Deleting the entry does not help: the stream is written again, with its
true ids. Nothing is taken from it until the other one is complete.
"""

import logging

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.script import NOW, constants, script

__all__ = ["FURTHEST_AHEAD_S", "AgentAuditRepair"]

logger = logging.getLogger(__name__)

FURTHEST_AHEAD_S = 3600
"""An entry whose id is further ahead of the clock of Redis has not got it from Redis."""


# Returns nothing if there is nothing to repair; otherwise whether there is more to do, and how many entries have got
# other ids and how many were left out, because they have no text. Entries go to `rebuilt` in portions; which was the
# last one is known from there, so any number of workers may do this, and be killed.
@script(
    constants(most=500, ahead_s=FURTHEST_AHEAD_S, ttl_s=keys.AUDIT_TTL_S, text_field=keys.AUDIT_FIELD),
    NOW,
    """
    local info = redis.pcall('XINFO', 'STREAM', audit)
    if info.err then return {} end  -- there is none, or it is not a stream
    local latest = math.floor((now + ahead_s) * 1000)
    local function is_far(id) return tonumber(string.match(id, '^%d+')) > latest end
    local function read(entry, name)
        local found
        for n = 1, #entry[2], 2 do if entry[2][n] == name then found = entry[2][n + 1] end end
        return found
    end
    local highest = '0'
    for n = 1, #info, 2 do if info[n] == 'last-generated-id' then highest = info[n + 1] end end
    if not is_far(highest) then return {} end
    local last = redis.call('XREVRANGE', rebuilt, '+', '-', 'COUNT', 1)[1]
    local after = last and (read(last, 'moved_from') or last[1]) or '0-0'
    local written, moved, left_out, skipped, entries = 0, 0, 0, 0, nil
    repeat  -- what was skipped after the last one that was written is read again in the next step
        -- There is no range after the highest of all ids.
        entries = after == highest and {} or redis.call('XRANGE', audit, '(' .. after, '+', 'COUNT', most)
        for _, entry in ipairs(entries) do
            local id, text = entry[1], read(entry, text_field)
            if not text then
                skipped = skipped + 1
            else
                if is_far(id) then
                    redis.call('XADD', rebuilt, '*', text_field, text, 'moved_from', id)
                    moved = moved + 1
                else
                    redis.call('XADD', rebuilt, id, text_field, text)
                end
                written, left_out, skipped = written + 1, left_out + skipped, 0
            end
            after = id
        end
    until #entries < most or written > 0
    redis.call('EXPIRE', rebuilt, ttl_s)
    if #entries == most then return {1, moved, left_out} end
    if last or written > 0 then redis.call('RENAME', rebuilt, audit) else redis.call('DEL', audit) end
    return {0, moved, left_out + skipped}
    """,
    known={"audit": keys.AGENT_AUDIT, "rebuilt": keys.REBUILT_AGENT_AUDIT},
)
def _repair() -> list[int]: ...


class AgentAuditRepair:
    """Repairs the stream in steps. Several workers may do so together; each logs its share."""

    def __init__(self) -> None:
        self._is_begun = False
        self._moved = self._left_out = 0

    def step(self, exchange: RedisExchange) -> bool:
        """Repair a portion, if there is something to repair. Returns whether there is more to do.

        Raises:
            RedisError: As `RedisExchange.execute`. No entry is lost.
        """
        is_going_on = False
        if found := _repair.run(exchange):
            is_going_on, moved, left_out = found
            self._is_begun = True
            self._moved += moved
            self._left_out += left_out
        if self._is_begun and not is_going_on:
            logger.warning(
                "%s was repaired: it had entries with ids in the future; %d got new ids, and %d without a text were "
                "left out",
                keys.AGENT_AUDIT,
                self._moved,
                self._left_out,
            )
            self._is_begun, self._moved, self._left_out = False, 0, 0
        return bool(is_going_on)

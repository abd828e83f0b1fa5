"""The error budgets of servers in Redis: what of their calls failed, over all workers, and which servers are suspended.

Owns the script that workers send about once a second for all servers that have a budget: it adds what they counted,
decides, and says what holds for all of them. All times are those of Redis. It does not know what counts as a failure.

A budget is a hash. Counts have fields such as `1754000000.0 c sre`: the start of a slice of the window, `c` for calls
or `f` for failed ones, and the principal. A suspended server has `until` (when it is tried again, or, with `prober`,
how long that worker has for it), `since` and `reason`; `length` and `ended` are of the last suspension. `last`,
`last_at` and `earlier_at` say whether several principals use the server.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.script import NOW, Key, Table, constants, script

__all__ = ["FIRST_S", "OTHERS", "BudgetReport", "BudgetState", "tend_budgets"]

FIRST_S = 30.0
"""How long a suspension lasts before the server is tried again; and the pause after a trial that failed."""
OTHERS = ""
"""Stands for the principals whose calls are not counted by name, because there are so many of them. Calls that fail are
counted by name twice as long."""


class BudgetReport(NamedTuple):
    """What one worker has to say of one server.

    Attributes:
        server: Its id.
        max_failure_rate: The budget.
        window_s: See there.
        min_calls: See there.
        trial_s: How long a worker may take for a trial.
        may_try: Whether this worker can try the server.
        event: `answered` or `silent`: how its trial has ended; `lifted`: an operator ends the suspension.
        calls: Calls since the last report, and how many of them failed, by principal.
    """

    server: str
    max_failure_rate: float
    window_s: float
    min_calls: int
    trial_s: float
    may_try: bool
    event: Literal["", "answered", "silent", "lifted"]
    calls: Mapping[str, tuple[int, int]]


class BudgetState(NamedTuple):
    """What holds for a server.

    Attributes:
        reason: Why it is suspended, without a full stop; empty if it is not.
        left_s: In how many seconds it is tried again.
        is_prober: It is for this worker to try it now.
    """

    reason: str
    left_s: float
    is_prober: bool


@script(
    NOW,
    constants(
        slices=10,
        most_fields=2000,
        others=OTHERS,
        first_s=FIRST_S,
        longest_s=600,
        forgotten_after_s=600,  # a suspension that ended longer ago does not make the next one longer
        several_s=3600,
        fewest_others=2,
        kept_s=7200,
    ),
    """
    local function store(budget, fields, ...)
        for _, name in ipairs({...}) do
            if fields[name] == nil then redis.call('HDEL', budget, name)
            else redis.call('HSET', budget, name, fields[name]) end
        end
    end

    local function lift(budget, fields)
        redis.call('DEL', budget)
        fields['until'], fields.since, fields.reason, fields.prober = nil, nil, nil, nil
        fields.ended = string.format('%.3f', now)
        store(budget, fields, 'length', 'ended', 'last', 'last_at', 'earlier_at')
    end

    -- Whether two agents or more call the server: all but the last one that did have called it lately.
    local function note_agent(fields, agent)
        if fields.last ~= agent then fields.last, fields.earlier_at = agent, fields.last_at end
        fields.last_at = string.format('%.3f', now)
    end

    local function count(budget, fields, counts, size, report)
        local slice_s = report.window_s / slices
        local slice = string.format('%.1f', math.floor(now / slice_s) * slice_s)
        for _, each in ipairs(report.calls) do
            local agent, calls, failed = unpack(each)
            note_agent(fields, agent)
            -- Who fails is known by name also then: the failures of one agent alone must not look like those of many.
            local most = failed > 0 and 2 * most_fields or most_fields
            if not counts[agent] and size >= most then agent = others end
            if not counts[agent] then counts[agent], size = {c = 0, f = 0}, size + 2 end
            redis.call('HINCRBY', budget, slice .. ' c ' .. agent, calls)
            counts[agent].c = counts[agent].c + calls
            if failed > 0 then
                redis.call('HINCRBY', budget, slice .. ' f ' .. agent, failed)
                counts[agent].f = counts[agent].f + failed
            end
        end
        if #report.calls > 0 then store(budget, fields, 'last', 'last_at', 'earlier_at') end
    end

    -- Too many calls failed, and also without those of the agent with the most failures, if it is not the only one.
    local function excess(fields, counts, report)
        local calls, failed, worst = 0, 0, {c = 0, f = 0}
        for agent, each in pairs(counts) do
            calls, failed = calls + each.c, failed + each.f
            if agent ~= others and each.f > worst.f then worst = each end
        end
        local rate = report.max_failure_rate
        if calls < report.min_calls or failed <= rate * calls then return nil end
        local earlier_at = tonumber(fields.earlier_at)
        if earlier_at and now - earlier_at <= several_s then
            local rest = failed - worst.f
            if rest < fewest_others or rest <= rate * (calls - worst.c) then return nil end
        end
        return string.format(
            '%d of its %d calls within %g s failed, because it did not answer in time or its connection failed',
            failed, calls, report.window_s)
    end

    local function tend(budget, report)
        local kind = redis.call('TYPE', budget).ok
        if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', budget) end
        local found, fields, counts, size = redis.call('HGETALL', budget), {}, {}, 0
        for i = 1, #found, 2 do
            local at, what, agent = string.match(found[i], '^([%d.]+) ([cf]) (.*)$')
            local slice, number = tonumber(at), tonumber(found[i + 1])
            if not at then
                fields[found[i]] = found[i + 1]
            elseif not slice or not number or slice <= now - report.window_s or slice > now + 1 then
                redis.call('HDEL', budget, found[i])
            else
                size = size + 1
                counts[agent] = counts[agent] or {c = 0, f = 0}
                counts[agent][what] = counts[agent][what] + number
            end
        end
        local till = tonumber(fields['until'])
        -- A Redis that took over with an earlier time must not keep it for longer, nor must what is no number.
        if till and not (till <= now + longest_s + report.trial_s) then till = now end

        if till and (report.event == 'answered' or report.event == 'lifted') then
            if report.event == 'lifted' then fields.length = nil end
            lift(budget, fields)
            till = nil
            counts = {}
        elseif till and report.event == 'silent' and fields.prober == instance then
            till, fields.prober = now + first_s, nil
            fields['until'] = string.format('%.3f', till)
            store(budget, fields, 'until', 'prober')
        end

        if not till then
            count(budget, fields, counts, size, report)
            fields.reason = excess(fields, counts, report)
            if fields.reason then
                local length, ended = tonumber(fields.length), tonumber(fields.ended)
                local is_again = length and ended and now - ended <= forgotten_after_s
                length = is_again and math.min(2 * length, longest_s) or first_s
                till = now + length
                redis.call('DEL', budget)
                fields.length, fields.since = length, string.format('%.3f', now)
                fields['until'] = string.format('%.3f', till)
                store(budget, fields, 'until', 'since', 'reason', 'length', 'last', 'last_at', 'earlier_at')
            end
        elseif till <= now and report.may_try then
            till, fields.prober = now + report.trial_s, instance
            fields['until'] = string.format('%.3f', till)
            store(budget, fields, 'until', 'prober')
        end
        redis.call('EXPIRE', budget, kept_s)
        if not till then return {'', '0', 0} end
        local left = string.format('%.3f', math.max(0, till - now))
        return {fields.reason or 'too many of its calls failed', left, fields.prober == instance and 1 or 0}
    end

    local replies = {}
    for index, budget in ipairs(budgets) do replies[index] = tend(budget, reports[index]) end
    return replies
    """,
    grows=True,
)
def _tend(*budgets: Key, instance: str, reports: Table) -> list[tuple[bytes, bytes, int]]: ...


def tend_budgets(exchange: RedisExchange, instance: str, reports: Sequence[BudgetReport]) -> dict[str, BudgetState]:
    """Report what a worker has counted, and learn what holds for each server. Raises `RedisError`.

    It may be sent twice, and then counts twice.

    Args:
        instance: Name of the worker process.
    """
    tables = [_table_of(report) for report in reports]
    budgets = [keys.error_budget_key(report.server) for report in reports]
    replies = _tend.run(exchange, *budgets, instance=instance, reports=tables)
    return {
        report.server: BudgetState(reason.decode(errors="replace"), float(left_s), bool(is_prober))
        for report, (reason, left_s, is_prober) in zip(reports, replies, strict=True)
    }


def _table_of(report: BudgetReport) -> dict[str, Any]:
    calls = [[agent, *counts] for agent, counts in report.calls.items()]
    return {**report._asdict(), "calls": calls}

"""Taking messages from their queues.

Owns the script that pops messages and leases them in the same step, so that a worker that is killed at any moment
has either left a message in its queue or holds a lease on it that lapses. A message of another producer gets its entry
in the in-flight table there, too. A call of an isolated session that another worker holds goes on to that one's queue
(`session_handover`). The worker's `fetcher` decides when it runs, and `deliveries` explains the states.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.begun import read_begun
from tarsy_tasks.broker.deliveries import as_text
from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.entries import MARKER_TTL_S, TAKE
from tarsy_tasks.broker.messages import DamagedMessage, read_message
from tarsy_tasks.broker.priority_lists import IN_LUA, priority_of_list
from tarsy_tasks.broker.received_json import LARGEST_BYTES
from tarsy_tasks.broker.script import NOW, Key, Script, constants, script
from tarsy_tasks.broker.session_handover import PASS_ON
from tarsy_tasks.broker.steps import KEYS
from tarsy_tasks.broker.task_headers import LONGEST_NAME, call_id_of
from tarsy_tasks.broker.task_names import CALL_TOOL, PREFIX, REQUEST

__all__ = ["FetchedMessage", "Fetcher", "declare_fetch", "fetch", "read_fetched"]

_BATCH_BYTES = 1024 * 1024
"""After so many bytes no further message is popped: a worker reads them all at once."""
_SHOWN = 100


class Fetcher(Protocol):
    """What takes the messages of a channel in place of kombu."""

    def consume(self, queue: str, lists: Sequence[str]) -> None:
        """Fetch from a queue; `lists` are its keys, by priority."""
        ...

    def cancel(self, queue: str) -> None:
        """Fetch no longer from a queue."""
        ...

    def wake(self) -> None:
        """Another message may be taken."""
        ...


_LEASE = r"""
    local function replace_half(kind, digits)
        if kind == 'u' and string.find(digits, '^[dD][89a-fA-F]%x%x$') then return '\\ufffd' end
    end
    -- The id of a task of ours, else the delivery tag; whether it is a call; and the session that it belongs to.
    local function read_tag(message)
        if #message > largest_bytes then return redis.sha1hex(string.sub(message, 1, 1024) .. #message) end
        local is_json, found = pcall(cjson.decode, message)
        if not is_json then  -- half a character stops this decoder only
            local whole = string.gsub(message, '\\(.)(%x?%x?%x?%x?)', replace_half)
            is_json, found = pcall(cjson.decode, whole)
        end
        local function text_in(part, name)
            local holder = is_json and type(found) == 'table' and found[part]
            local text = type(holder) == 'table' and holder[name]
            return type(text) == 'string' and #text <= longest_name and text or ''
        end
        local task, id = text_in('headers', 'task'), text_in('headers', 'id')
        if id ~= '' and string.sub(task, 1, #prefix) == prefix then
            return id, task == call or task == request, text_in('headers', session_header)
        end
        local tag = text_in('properties', 'delivery_tag')
        return tag ~= '' and tag or redis.sha1hex(message)
    end
    -- Nothing if it was passed on.
    local function lease(name, home, message)
        local tag, is_call, session = read_tag(message)
        if is_call and session ~= '' and pass_on(session, tag, name, home, message) then return nil end
        local found = take(tag, home, waiting_prefix .. home, marker_prefix .. tag, withdrawn_prefix .. tag,
            name .. '\n\n' .. message, not is_call)
        local text = #message > largest_bytes and '' or message
        local counted = is_call and found[2] == '' and count_call(home, home .. '\n' .. tag) or nil
        local begun = (counted or found[4] ~= '') and found[4] or nil
        return {name, tag, found[1], found[5], found[2], found[3], text, begun, counted}
    end
    """
_OWN_HOMES = r"""
    local function is_set() return false end
    local function home_of(name) return string.match(name, '^(.-)\6\22') or name end
    """
_UNLIMITED = r"""
    local function allow(_, most) return most end
    local function count_call() end
    local function report_left_out() end
    """
_POP = r"""
    local homes, lists, left, fetched, bytes, popped, trouble = {}, {}, {}, {}, 0, 0, nil
    local nth = 0
    for limit in string.gmatch(limits, '%d+') do
        nth = nth + 1
        local home = home_of(names[nth])
        homes[nth], left[home], lists[home] = home, tonumber(limit), lists[home] or {}
        if not is_set(names[nth]) then table.insert(lists[home], names[nth]) end
    end
    local function as_error(found) return type(found) == 'table' and found or redis.error_reply(tostring(found)) end
    -- It counts for the limit of `counted`.
    local function fetch_from(name, home, counted, most)
        most = allow(home, most)
        if most <= 0 then return false end
        local messages = redis.pcall('RPOP', name, most)
        if not messages or messages.err then return false end  -- empty, or not a queue
        for n, message in ipairs(messages) do
            local is_leased, found
            if bytes < batch_bytes then is_leased, found = pcall(lease, name, home, message) end
            if not is_leased then  -- nothing may be lost because a command is refused
                for back = #messages, n, -1 do redis.call('RPUSH', name, messages[back]) end
                if found then trouble = as_error(found) end
                return false
            end
            popped, bytes = popped + 1, bytes + #message
            if found then
                fetched[#fetched + 1] = found
                room, left[counted] = room - 1, left[counted] - 1
            end
        end
        return #messages == most
    end
    -- One message of several lists, of the first that has any. In one turn of ten batch comes first, in two normal: so
    -- none waits for ever. The clock says which turn it is, because a key that counts would cost commands.
    local turn = tonumber(time[2])
    local function fetch_by_priority(found, home, counted)
        if #found == 1 then return fetch_from(found[1], home, counted, 1) end
        local before = popped
        turn = (turn + 1) % 10
        local first = turn == 0 and 3 or turn % 4 == 0 and 2 or 1
        for _, is_first in ipairs({true, false}) do
            for _, name in ipairs(found) do
                if (rank_of(name) == first) == is_first then fetch_from(name, home, counted, 1) end
                if popped > before or trouble then return popped > before end
            end
        end
        return false
    end
    local function serve_lists(n, most)
        local home = homes[n]
        local found = lists[home]
        if #found == 1 then return fetch_from(found[1], home, home, most) end
        return fetch_by_priority(found, home, home)
    end
    """
_SERVE_ONE = r"""
    local serve, unseen = serve_lists, {}
    local function settle() end
    local function is_served_with_others(n) return lists[homes[n]][1] ~= names[n] end
    """
_IN_TURN = r"""
    local active, share, refused = {}, #names == 1 and at_once or 1, nil
    for n = 1, #names do
        if not is_served_with_others(n) then active[#active + 1] = n end
    end
    while #active > 0 do
        local again, served = {}, {}
        for _, n in ipairs(active) do
            local home = homes[n]
            local most = math.min(share, left[home], n <= checks and room or room - kept)
            if served[home] then again[#again + 1] = n
            elseif most > 0 and bytes < batch_bytes and not trouble then
                local before = popped
                -- A command may be refused, such as one for limits. Then what was taken for others is still returned.
                local is_served, found = pcall(serve, n, most)
                if not is_served then refused = as_error(found)
                elseif found then again[#again + 1] = n
                end
                served[home] = popped > before
            end
        end
        active = again
    end
    pcall(settle)
    trouble = trouble or refused
    if trouble and #fetched == 0 then return trouble end
    if passed_on > 0 and #fetched == 0 then fetched[1] = {passed_from} end
    report_left_out(fetched, unseen)
    return fetched
    """


def declare_fetch(
    homes: str = _OWN_HOMES, serving: str = _SERVE_ONE, limiting: str = ""
) -> Script[Any, list[list[Any]]]:
    """A script that pops up to `room` messages, from each queue up to its limit, one from each queue in turn.

    The first `checks` names are queues of checks; the others leave `kept` of the room. A queue may have several lists,
    the most urgent first; while all of them have messages, seven of ten messages are interactive, two normal and one
    batch (docs/limits.md). It returns for each message its list, tag, delivery count, how often it was given back,
    state, owner and text, and the lines of all who began it if there are any; and if it is counted in limits, these, as
    `Delivery.counted`. If it has passed on all that it popped, it returns the queue of the last one alone.

    `instance` is the worker that takes them.

    Args:
        homes: In Lua, `home_of(name)`: the queue whose limit counts for a name; `is_set(name)`: it is not a list.
        serving: In Lua, `serve(n, most)`: take up to `most` messages for a name and return whether there may be more;
            `is_served_with_others(n)`: whether those of another name are served for it; `settle()`, which is called
            last; and then `unseen`: the queues of which some calls were not looked at.
        limiting: In Lua, `allow(home, most)`: how many messages may be taken from a queue, and then
            `count_call(home, lease)` counts each call and returns its limits; and
            `report_left_out(fetched, unseen)` adds, for each server of which calls are left out, its queue and the
            seconds until the next of them may be taken, 0 if it is in `unseen`. Empty: there are no limits
            (`limit_counters.limit_fetch`).
    """
    values = constants(
        marker_ttl_s=MARKER_TTL_S,
        largest_bytes=LARGEST_BYTES,
        batch_bytes=_BATCH_BYTES,
        at_once=4,
        longest_name=LONGEST_NAME,
        prefix=PREFIX,
        call=CALL_TOOL,
        request=REQUEST,
        marker_prefix=keys.call_marker(""),
        waiting_prefix=keys.waiting_key(""),
        withdrawn_prefix=keys.withdrawn_key(""),
    )

    @script(
        *(values, NOW, TAKE, limiting or _UNLIMITED, PASS_ON, _LEASE, homes, IN_LUA, _POP, serving, _IN_TURN),
        known={name: KEYS[name] for name in ("unacked", "leases")},
    )
    def fetch(*names: Key, limits: str, checks: int, room: int, kept: int, instance: str) -> list[list[Any]]: ...

    return fetch


fetch = declare_fetch()


@dataclass(eq=False)
class FetchedMessage:
    """One message that was fetched: its text, and how it was taken."""

    text: bytes
    delivery: Delivery

    @cached_property
    def payload(self) -> dict[str, Any] | None:
        """What kombu made of it when it was published; None if it cannot be read."""
        try:
            return read_message(self.text)
        except DamagedMessage:
            return None

    @property
    def headers(self) -> dict[str, Any]:
        return self.payload["headers"] if self.payload else {}

    @property
    def content_type(self) -> Any:
        return self.payload and self.payload.get("content-type")

    @property
    def content_encoding(self) -> Any:
        return self.payload and self.payload.get("content-encoding")


def read_fetched(reply: list[Any]) -> FetchedMessage:
    """Read what the script returned of one message.

    Raises:
        DamagedMessage: What Redis knows of its call cannot be read; or its decoder of JSON has read another id in the
            message than that it would be run with.
    """
    name, tag, count, given_back, state, owner, text, *begun = reply
    if (tag_text := as_text(tag)).encode() != tag:
        raise DamagedMessage("its id is not valid UTF-8")
    try:
        known = CallState(as_text(state))
    except ValueError:
        raise DamagedMessage(f"its call is in an unknown state: {as_text(state)[:_SHOWN]!r}") from None
    name = as_text(name)
    delivery = Delivery(tag_text, keys.without_priority(name), count, known, as_text(owner), len(text))
    delivery.given_back = given_back
    if name != delivery.queue:
        delivery.priority = priority_of_list(name)
    if begun:
        delivery.begun_before = read_begun(begun[0])
        if len(begun) > 1:
            delivery.counted = as_text(begun[1])
    message = FetchedMessage(text, delivery)
    if (payload := message.payload) is not None:
        headers = payload["headers"]
        if headers.get("id") != tag_text and call_id_of(headers) is not None:
            raise DamagedMessage("Redis reads another id in it")
    return message

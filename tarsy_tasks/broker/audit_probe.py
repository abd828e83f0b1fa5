"""Whether the audit takes entries, asked by the scripts of calls that must not run without one."""

from tarsy_tasks.broker import keys

__all__ = ["PROBE_AUDIT"]

PROBE_AUDIT = f"""
    local function probe_audit()
        local probe = redis.pcall('XADD', audit, '*', '{keys.AUDIT_FIELD}', '')
        if type(probe) == 'table' then return probe.err end
        redis.call('XDEL', audit, probe)
        redis.call('EXPIRE', audit, {keys.AUDIT_TTL_S})
    end
    """
"""A Lua function: why the audit takes no entry, or nothing."""

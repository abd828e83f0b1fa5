"""What an operator does about an error, by its code.

Owns sentences for operators; those for models are in the results, and are cut off here.
"""

import re
from collections.abc import Mapping

from tarsy_tasks.outcomes import ErrorCode

__all__ = ["cut_advice", "find_remedy"]

_WHAT_HAPPENED = re.compile(r".*?\b(?:did not run|may have run)\.", re.DOTALL)
"""The first part of an error's text; what the model is to do follows."""

_REMEDIES: Mapping[str, str] = {
    ErrorCode.TOOL_ERROR: "The tool ran and reported an error, so the server works. Look at the arguments of the call.",
    ErrorCode.SERVER_ERROR: "The server answered with a JSON-RPC error. Look at the lines that it logged.",
    ErrorCode.INVALID_RESULT: "The server's answer is not valid MCP, or does not fit its output schema. Report it to "
    "the author of the server.",
    ErrorCode.RESULT_TOO_LARGE: "Raise max_message_bytes of the server, or have the agent ask for less.",
    ErrorCode.DEADLINE_PASSED: "Calls wait too long. Add workers or raise max_concurrency, or give calls more time.",
    ErrorCode.NOT_STARTED: "No worker took the call in time. Add workers, or give calls more time.",
    ErrorCode.NO_WORKER: "Start a worker that serves this server: celery -A tarsy_tasks worker",
    ErrorCode.SERVER_UNAVAILABLE: "Check that the program starts, or that the address can be reached from the worker; "
    "its last lines are below. Then press Reconnect.",
    ErrorCode.SERVER_REFUSED: "Check the server's URL, its credentials and its certificate in the configuration; "
    "workers take a changed file by themselves.",
    ErrorCode.SERVER_MISCONFIGURED: "Set what is missing in the worker's environment or configuration: tarsy-tasks "
    "config check",
    ErrorCode.TOO_MANY_SESSIONS: "All isolated sessions of the server are in use. Raise its `isolated` limits, add "
    "workers, or have runs close what they no longer need.",
    ErrorCode.NO_CREDENTIAL: "Give the agent the credential that the text names.",
    ErrorCode.TOO_MANY_PARKED: "The agent has as many calls that wait as it may. Decide those in the inbox, or raise "
    "TARSY_PARKED_CALLS of the workers.",
    ErrorCode.TOO_MANY_QUESTIONS: "The server asked for input again and again, or for too much at once. Report it to "
    "its author.",
    ErrorCode.TASK_INPUT_REQUIRED: "The server runs the call as a task that asks for input, which it cannot get. Have "
    "the agent give it as arguments.",
    ErrorCode.INPUT_STATE_REFUSED: "The server no longer knows what it had asked; it was probably restarted. The next "
    "call asks again.",
    ErrorCode.TASK_LOST: "The server no longer knows the task of the call. Look at its log lines, and check the "
    "effects of the call.",
    ErrorCode.SERVER_REMOVED: "The server was removed from the configuration, or disabled. Agents that still call it "
    "need the new list of tools.",
    ErrorCode.AUDIT_UNAVAILABLE: "The audit is required and cannot be written. Check Redis and the audit file; the "
    "worker's log has the cause.",
    ErrorCode.INTERCEPTOR_FAILED: "Fix the interceptor that the worker's log names, or load the current ACL rules.",
    ErrorCode.SESSION_LOST: "The server's process or connection ended while a call ran. Look at its last lines, and "
    "check the effects of the call.",
    ErrorCode.WORKER_LOST: "A worker was killed or lost its connection. Check its memory limit and its log.",
    ErrorCode.WORKER_STOPPED: "A worker was stopped before the call had ended. Raise TARSY_SHUTDOWN_GRACE_S if calls "
    "take longer.",
    ErrorCode.SET_ASIDE: "Several workers were lost with this call: tarsy-tasks dead-letters show ID",
    ErrorCode.INTERNAL_ERROR: "The worker failed. Its log has the traceback; please report it.",
    ErrorCode.CALL_TIMEOUT: "The server took longer than allowed. Look at its load, or raise timeouts.call_s.",
    ErrorCode.TIME_LIMIT: "Celery's time limit passed. Raise it, or lower timeouts.call_s.",
    ErrorCode.NO_ANSWER: "The answer did not arrive in time. Check Redis and the worker's log.",
    ErrorCode.NOT_PERMITTED: "The policy does not permit the call. If it should: tarsy-tasks policy check says which "
    "rule decides.",
    ErrorCode.ARGUMENTS_NOT_PERMITTED: "The policy permits the tool, but not with these arguments: tarsy-tasks policy "
    "check.",
    ErrorCode.RATE_LIMITED: "The call was over a limit of the policy, or its server had too many requests: "
    "tarsy-tasks limits shows what is used.",
    ErrorCode.TOOL_CHANGED: "Look at the changes of the tool, and approve them if they are meant.",
    ErrorCode.WRONG_QUEUE: "A producer sends calls of one server into the queue of another. Correct it.",
    ErrorCode.INVALID_MESSAGE: "A producer sends messages that are not valid, or not signed. Correct it.",
}


def find_remedy(code: str | None) -> str:
    """A sentence or two; empty for mistakes of callers, and for codes of later versions."""
    return _REMEDIES.get(code or "", "")


def cut_advice(code: str, text: str) -> str:
    """What happened and whether the tool ran, of an error's text for the model. That of a tool stays as it is."""
    if code == ErrorCode.TOOL_ERROR.name:
        return text
    found = _WHAT_HAPPENED.match(text)
    return found[0] if found else text

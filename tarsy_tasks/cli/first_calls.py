"""Whether each MCP server of a stack works, end to end: a list of its tools through a worker, and a harmless call.

Owns the choice of the call, and when a server is asked again. `up` prints what it finds.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from tarsy_tasks import AsyncToolExecutor, Outcome, TarsyTasksError, ToolDefinition
from tarsy_tasks.cli.output import counted
from tarsy_tasks.health import statuses

__all__ = ["FirstCall", "check_server", "find_harmless"]

_ANSWER_S = 60.0
_NO_ANSWER_YET = "its program or address has not answered yet; what npx or uvx starts may be downloaded first"
_PAUSE_S = 2.0
_HEAD_CHARS, _TAIL_CHARS = 200, 400
"""Of a longer text: what failed is said first, and why comes last, as the last line of a traceback and the advice."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_DISCLOSING = re.compile(
    r"""(?xi)
      [a-z]*env(?:s|iron\w*)? | [a-z]*(?:secret|passw(?:or)?d|passphrase|credential|token|cookie)s?
    | (?:api)?keys? | creds? | o?auth(?:enticat\w*|oriz\w*)? | variables? | config(?:s|uration)? | settings?
    | logins? | sessions? | private | dump\w* | debug\w*
    """
)
"""Words of tools that may answer with the environment of their server, or with credentials."""


@dataclass(frozen=True)
class FirstCall:
    """What came of asking a server.

    Attributes:
        works: Whether it listed its tools, and answered the call if there was one.
        is_starting: It has not started yet, but may soon: a first attempt still runs, or the next one gets more time.
        text: For operators, one line.
        tools: Its tools.
        answered: The tool that answered the call, if there was one.
    """

    server: str
    works: bool
    text: str
    tools: tuple[ToolDefinition, ...] = ()
    answered: str = ""
    is_starting: bool = False


async def check_server(server: str) -> AsyncIterator[FirstCall]:
    """Ask a server until it works: each answer that says something new, the one that it works last."""
    last = None
    while True:
        try:
            found = await _ask(server)
        except TarsyTasksError as error:
            found = FirstCall(server, works=False, text=_one_line(str(error)))
        # Numbers differ each time: processes, ports, names of logs.
        if (shape := (found.is_starting, re.sub(r"\d+", "", found.text))) != last:
            last = shape
            yield found
        if found.works:
            return
        await asyncio.sleep(_PAUSE_S)


async def _ask(server: str) -> FirstCall:
    async with AsyncToolExecutor([server], timeout_s=_ANSWER_S, agent_id="up") as executor:
        tools = await executor.list_tools()
        if tools.failed_servers:
            return await asyncio.to_thread(_describe_failure, server, tools.failed_servers[server])
        listed = counted(len(tools), "tool")
        harmless = find_harmless(tools)
        if harmless is None:
            return FirstCall(server, works=True, text=listed, tools=tuple(tools))
        result = await executor.execute(harmless.name, {})
    if result.outcome is Outcome.OK:
        text = f"{listed}; {harmless.name} answered in {result.duration_s * 1000:.0f} ms"
        return FirstCall(server, True, text, tuple(tools), harmless.name)
    # A tool that reports an error was reached: what it lacks, such as a login, concerns this tool.
    works = result.outcome is Outcome.TOOL_ERROR
    return FirstCall(server, works, f"{listed}; {harmless.name}: {_one_line(result.content)}", tuple(tools))


def _describe_failure(server: str, text: str) -> FirstCall:
    """Why a server fails, as workers report it for operators; `text`, which is for models, if they report nothing."""
    health = statuses([server])[server]
    if not health.workers:
        return FirstCall(server, works=False, text=_NO_ANSWER_YET, is_starting=True)
    is_starting = any(record.longer_attempt_s is not None for record in health.workers.values())
    return FirstCall(server, works=False, text=_one_line(health.reason or text), is_starting=is_starting)


def find_harmless(tools: Iterable[ToolDefinition]) -> ToolDefinition | None:
    """A tool that says that it only reads, and needs no arguments; best one that stays within its server.

    Never one that may disclose a secret, by its name, title or description: nobody has asked for the answer, which is
    stored in Redis.
    """
    found = [tool for tool in tools if _only_reads(tool) and not _may_disclose(tool)]
    return min(found, key=lambda tool: tool.annotations.get("openWorldHint") is not False, default=None)


def _only_reads(tool: ToolDefinition) -> bool:
    hints = tool.annotations
    is_reading = hints.get("readOnlyHint") is True and hints.get("destructiveHint") is not True
    return is_reading and not tool.input_schema.get("required")


def _may_disclose(tool: ToolDefinition) -> bool:
    said = (tool.tool, tool.title, tool.annotations.get("title"), tool.description)
    return any(map(_DISCLOSING.fullmatch, _WORD.findall(" ".join(map(str, said)))))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    if len(line) <= _HEAD_CHARS + _TAIL_CHARS:
        return line
    return f"{line[:_HEAD_CHARS]} … {line[-_TAIL_CHARS:]}"

"""What of a list of tools goes into a prompt that may have so many tokens.

Owns the choice, and the sentence about what was left out. It does not know how the prompt is written: its caller writes
it with any choice.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from math import ceil

from tarsy_tasks.agent.search_tools import CALL, SEARCH
from tarsy_tasks.models import ToolDefinition

__all__ = ["estimate_tokens", "fit_budget", "take_turns"]

_BYTES_PER_TOKEN = 3.5
_SERVERS_SHOWN = 10

Write = Callable[[Sequence[ToolDefinition], Mapping[str, str]], str]
"""Writes the prompt with some tools, and with the instructions of some servers."""


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: one for 3.5 bytes, a little more than models have in English with names."""
    return ceil(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN)


def take_turns(tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
    """The first tool of each server, then the second of each, and so on: so no server takes all the space."""
    by_server: dict[str, list[ToolDefinition]] = {}
    for tool in tools:
        by_server.setdefault(tool.server, []).append(tool)
    return [tool for tool in chain.from_iterable(zip_longest(*by_server.values())) if tool is not None]


def fit_budget(
    ranked: Sequence[ToolDefinition],
    instructions: Mapping[str, str],
    write: Write,
    budget_tokens: int,
    count_tokens: Callable[[str], int],
) -> str:
    """The prompt with the first tools that fit, each whole, then with the instructions of their servers that fit.

    Args:
        ranked: The tools, the most important first.

    Returns:
        It has no more tokens than the budget, unless the sentences that are always there have more.
    """

    def prompt(tools: Sequence[ToolDefinition], told: Mapping[str, str]) -> str:
        return "\n\n".join(each for each in (write(tools, told), _say_left_out(ranked, tools)) if each)

    def fits(tools: Sequence[ToolDefinition], told: Mapping[str, str]) -> bool:
        return count_tokens(prompt(tools, told)) <= budget_tokens

    # How many tools fit is found by halving: to write the prompt once more for each tool takes too long for a thousand.
    low, high = 0, len(ranked)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(ranked[:middle], {}) else (low, middle - 1)
    chosen, told = ranked[:low], dict[str, str]()
    for server in dict.fromkeys(tool.server for tool in chosen):
        if server in instructions and fits(chosen, more := {**told, server: instructions[server]}):
            told = more
    return prompt(chosen, told)


def _say_left_out(ranked: Sequence[ToolDefinition], chosen: Sequence[ToolDefinition]) -> str:
    if not (missing := len(ranked) - len(chosen)):
        return ""
    counts = Counter(tool.server for tool in ranked)
    counts.subtract(tool.server for tool in chosen)
    shown = [f"{server} ({count})" for server, count in counts.most_common(_SERVERS_SHOWN) if count > 0]
    more = f" and {len(+counts) - len(shown)} more servers" if len(+counts) > len(shown) else ""
    return (
        f"{missing} more tools do not fit here, of {', '.join(shown)}{more}. To find them, call `{SEARCH}` "
        f'with {{"query": "what to do, in a few words"}}; then call them by name, or with `{CALL}`.'
    )

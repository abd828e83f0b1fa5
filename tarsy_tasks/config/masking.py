"""How the texts of one server are masked: `masking` of its entry.

Owns the model. The groups and the syntax of patterns are those of `tarsy_tasks.masking`.
"""

from typing import Annotated

from pydantic import AfterValidator, Field

from tarsy_tasks.config.problems import suggest
from tarsy_tasks.config.texts import Model

__all__ = ["Masking"]


def _validate_group(name: str) -> str:
    from tarsy_tasks.masking.rules.groups import ALWAYS, GROUPS, OPTIONAL

    known = {*GROUPS, *ALWAYS, *OPTIONAL}
    if name not in known:
        raise ValueError(f"no masking group or pattern has this name; {suggest(name, known)}")
    return name


def _validate_pattern(pattern: str) -> str:
    from tarsy_tasks.masking.custom import compile_pattern

    compile_pattern(pattern)
    return pattern


class Masking(Model):
    """How a server's results, errors and output are masked. `groups` and `patterns` only add to what is always
    masked."""

    enabled: bool = Field(
        default=True,
        description="Whether anything is masked; the secrets of the workers' configuration are masked in any case.",
    )
    groups: list[Annotated[str, AfterValidator(_validate_group)]] = Field(
        default=["basic"], description="Groups of patterns, or single patterns, in addition to what is always masked."
    )
    patterns: list[Annotated[str, Field(min_length=1), AfterValidator(_validate_pattern)]] = Field(
        default_factory=list,
        description="More patterns, in RE2 syntax; the first group of a pattern is masked, or the whole match if it "
        "has no group.",
    )

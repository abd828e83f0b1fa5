"""What of a server's words is masked beside that which always is.

Owns the setting and its checks. Patterns are compiled to be checked, where there are any; masking itself is done by
`tarsy_tasks.masking`.
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tarsy_tasks.config.problems import suggest

__all__ = ["Masking"]


def _validate_group(name: str) -> str:
    from tarsy_tasks.masking.rules.groups import ALWAYS, GROUPS, OPTIONAL

    known = {*GROUPS, *ALWAYS, *OPTIONAL}
    if name not in known:
        raise ValueError(f"found neither a group nor a pattern of that name; {suggest(name, known)}")
    return name


def _validate_pattern(pattern: str) -> str:
    from tarsy_tasks.masking.custom import check_pattern

    check_pattern(pattern)
    return pattern


class Masking(BaseModel):
    """How a server's results, errors and output are masked. Nothing that is always masked is switched off by `groups`
    or `patterns`; only `enabled` does that.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    enabled: bool = Field(
        default=True,
        description="Whether anything is masked; the secrets of the workers' own configuration are in any case.",
    )
    groups: list[Annotated[str, AfterValidator(_validate_group)]] = Field(
        default=["basic"], description="Groups of patterns, or single ones, beside what is always masked."
    )
    patterns: list[Annotated[str, Field(min_length=1), AfterValidator(_validate_pattern)]] = Field(
        default_factory=list,
        description="More patterns, in the syntax of RE2; the first group of one that has groups is masked, else all "
        "that it matches.",
    )

"""Masking: `build_masker(groups=None).mask(text)` replaces every secret in a text by `__MASKED__`.

`masker` runs these searches, in this order; what knows more of the structure of a text runs first:

    known_secrets     values that are secret wherever they appear: those of the configuration
    json_text         JSON, also in strings, in lines, cut off; `json_reader` has the grammar, `json_frames` what is
                      open, `json_values` the rules, `answers` the JSON output of well-known programs
    kubernetes        Secrets in YAML, whose keys need not be names of secrets
    private_keys      everything between BEGIN and END
    tables            columns and cells; `html_tables` those of HTML
    languages         names in other alphabets
    announced_lines   a line whose content the line above announces
    sql               columns named in one place, with their values in another
    commands          arguments of programs
    forms             values whose form shows that they are secret; `tokens` has those of providers, `lines` those at a
                      fixed position in a line
    assignments       values behind a name (`name_match`); `following_values`, `nested_values`, `value_spans`,
                      `value_lists` and `blocks` find where they begin and end, `markup` and `headers` those with a
                      syntax of their own
    encoded           base64 of a text
    custom            patterns that a configuration adds; `groups` has their names

`masked_text` marks text that needs none of this, `harmless` recognizes what is common in logs. `search` looks for many
patterns at once, `prefixes` sees through lines that begin alike, `edits` replaces what was found. `rules` has the
tables: `answers`, `groups`, `headers`, `lines`, `tokens` and `vocabulary`. `names` and `values` use the word lists of
`vocabulary`: which names belong to a secret, and which values are not secret in spite of their name. A secret without
such a name or form is not found. Importing this package loads nothing; `build_masker`, `mask_text` and `Masker` load
the searches when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tarsy_tasks.masking.masker import Masker, build_masker, mask_text

__all__ = ["Masker", "build_masker", "mask_text"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.masker"), name)

"""Characters that people do not see, in texts of servers, agents and models.

A terminal executes some of them, so that the name of a tool could delete the line that warns of it; others hide words
or change their order. Owns which they are, and how they are shown. Masking is not done here.
"""

import re

__all__ = ["HIDDEN", "make_visible"]

HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 controls, line breaks among them
    "\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # of no width; order of writing
    "\ud800-\udfff\U000e0000-\U000e0fff]"  # halves of pairs, which no output takes; tags and variants
)


def make_visible(text: str, keep: str = "") -> str:
    r"""The text with each hidden character written as in Python, like `\x1b`.

    Args:
        keep: Hidden characters that may stay, such as line breaks.
    """
    return HIDDEN.sub(lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text)

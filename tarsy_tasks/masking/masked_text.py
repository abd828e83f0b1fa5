"""Text that is masked already: sentences of this package, whose parts were masked before they were put in.

Owns the mark. As a whole such a sentence must not be searched: `${TOKEN:-default}` in the remedy for a variable that is
not set would be taken for a secret.
"""

__all__ = ["MaskedText"]


class MaskedText(str):
    """A text that every masker, and the filter of the logs, leaves as it is. What is made of it is a plain `str`."""

    __slots__ = ()

"""What masking makes of what tools answer every day: it leaves the lines of ordinary logs, tables and manifests, and it
takes secrets in forms that are seldom but not strange."""

import pytest

from tarsy_tasks.masking import MASK, build_masker

masker = build_masker()


def test_a_putty_key_is_masked_as_far_as_it_goes() -> None:
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIJ\nAAAAIHmWv1==\n"
    masked = masker.mask(f"Private-Lines: 2\n{key}Private-MAC: 0\nthe end")
    assert masked == f"Private-Lines: 2\n{MASK}\n{MASK}\nPrivate-MAC: 0\nthe end"
    assert masker.mask("Private-Lines: 9999\nPrivate-Lines: 1\nno key, it seems") == (
        "Private-Lines: 9999\nPrivate-Lines: 1\nno key, it seems"
    )
    assert masker.mask(masked) == masked

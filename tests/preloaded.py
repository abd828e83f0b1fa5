"""What a forked program needs not do again, beside importing: the server process of `tests.forked` does this once."""

import gc

from tarsy_tasks.masking import build_masker

# A search builds most of what it needs of RE2 when it first runs.
build_masker().mask('{"command": "curl -H \'Authorization: Bearer abc\' https://user:secret@host/?token=abc"}')
# Collections of a forked program would visit, and thereby copy, all of this.
gc.collect()
gc.freeze()

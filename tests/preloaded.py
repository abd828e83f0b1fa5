"""What forked programs need not repeat, besides imports: the server process of `tests.forked` does it once."""

import gc

from tarsy_tasks.masking import build_masker

# RE2 builds most of its automata during the first search.
build_masker().mask('{"command": "curl -H \'Authorization: Bearer abc\' https://user:secret@host/?token=abc"}')
# Collections of a forked program would visit, and thereby copy, all of this.
gc.collect()
gc.freeze()

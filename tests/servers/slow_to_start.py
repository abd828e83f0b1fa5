"""Starts slowly, and records how many do so at the same time, itself included:
`slow_to_start.py DIRECTORY PROGRAM [ARGUMENTS]`.

While it starts there is a file `PID.starting` in the directory. Then it writes `PID.records`, with the number of these
files and when it began and ended, and becomes that program.
"""

import os
import sys
import time
from pathlib import Path


def main() -> None:
    here, program = Path(sys.argv[1]), sys.argv[2:]
    mine = here / f"{os.getpid()}.starting"
    mine.touch()
    began = time.time()
    time.sleep(0.3)
    count = len([*here.glob("*.starting")])
    mine.with_suffix(".records").write_text(f"{count} {began} {time.time()}")
    mine.unlink()
    os.execv(program[0], program)


if __name__ == "__main__":
    main()

"""Stands for a Python program that `tests.warm_start` runs: `python -S -E warm.py SOCKET [python's arguments]`.

It starts in no time: it hands over its files, directory and environment, and waits. It ends as the program does, and
the program ends with it. Where nobody listens it becomes that program itself.
"""

import json
import os
import signal
import socket
import sys

_PASSED_ON = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    path, *arguments = sys.argv[1:]
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(path)
    except OSError:
        os.execv(sys.executable, [sys.executable, *arguments])
    request = {"arguments": arguments, "directory": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
    socket.send_fds(link, [b"\n"], [0, 1, 2])
    link.sendall(json.dumps(request).encode() + b"\n")
    answers = link.makefile("rb")
    program = int(answers.readline())
    for number in _PASSED_ON:
        signal.signal(number, lambda received, _: os.kill(program, received))
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in range(3):
        os.dup2(nothing, file)
    code = int(answers.readline() or 1)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()

"""A process of its own masks large texts as the worker would, with the secrets that are known by then, or not at all.

It is a fork, and only a process with one thread can be forked: each test runs in one, beside that of the suite.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import psutil
import pytest

from tarsy_tasks.masking import process as program
from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.masker import build_masker
from tarsy_tasks.worker.masking_process import LARGE_CHARS, MaskingProcess, Rules, allow_in_thread, take_cost_s
from tarsy_tasks.worker.transport.sandbox.launcher import hide_memory
from tests.forked import SERVER
from tests.processes import is_alive, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is for Linux")
LARGE = "password: hunter2-and-more\nToken ist \ud800 streng geheim, ORDER-4711\n" * 1000
PATTERNS = [r"ORDER-\d+"]
KNOWN = "kept-in-the-vault-1"
BOTH = "another-kept-value-2"
COMMON = Rules(None, (), True, KnownSecrets())
NOBODY = 65534
SET_DUMPABLE = 4


def alone(test: Callable[[], None]) -> Callable[[], None]:
    """The test runs in a process with one thread."""

    @wraps(test)
    def run() -> None:
        with ProcessPoolExecutor(1, mp_context=SERVER) as other:
            other.submit(_run_original, test.__name__).result()

    return run


def _run_original(name: str) -> None:
    globals()[name].__wrapped__()


class Log(logging.Handler):
    """What the package logs in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("tarsy_tasks").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Running:
    """The process, and threads that it serves."""

    def __init__(self, process: MaskingProcess | None = None) -> None:
        self.process = process or MaskingProcess()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.process.start()
        assert not self.process.obstacle
        [self.child] = children()
        self.threads = ThreadPoolExecutor(2, initializer=allow_in_thread)

    def mask(self, rules: Rules, text: str) -> str | None:
        return self.threads.submit(self.process.mask, rules, text).result()


@contextmanager
def running(process: MaskingProcess | None = None) -> Generator[Running]:
    one = Running(process)
    with one.threads:
        yield one
        one.process.end()
    assert not children()
    assert not psutil.pid_exists(one.child.pid), "it is no zombie"


def children() -> list[psutil.Process]:
    return psutil.Process().children()


@alone
def test_a_large_text_is_masked_as_in_the_worker() -> None:
    known = KnownSecrets([KNOWN])
    text = LARGE + KNOWN
    here = build_masker(["security"], patterns=PATTERNS, known=known).mask(text)
    assert "hunter2" not in here
    assert KNOWN not in here
    with running() as one:
        assert one.mask(Rules(["security"], PATTERNS, True, known), text) == here
        costs = [one.threads.submit(take_cost_s).result() for _ in range(4)]
        assert one.mask(Rules([], (), False, known), text) == LARGE + "__MASKED__"
    assert sum(costs) > 0, "its time counts as that of the server"


@alone
def test_secrets_that_change_reach_the_process() -> None:
    known = KnownSecrets()
    rules, text = Rules([], (), False, known), LARGE + BOTH
    with running() as one:
        assert one.mask(rules, text) == text
        known.add([BOTH])
        assert one.mask(rules, text) == LARGE + "__MASKED__"


@alone
def test_a_process_that_is_killed_masks_nothing_by_half() -> None:
    log = Log()
    with running() as one:
        assert one.mask(COMMON, LARGE)
        one.child.suspend()
        answer = one.threads.submit(one.process.mask, COMMON, LARGE)
        one.child.kill()
        assert answer.result() is None
        assert not is_alive(one.child)
        assert one.mask(COMMON, LARGE) is None
        assert not children(), "it is not started again"
    [line] = log.lines
    assert "Restart the worker" in line


@alone
def test_nobody_waits_for_a_process_that_is_stopped() -> None:
    log = Log()
    with running() as one:
        one.child.suspend()
        both = [one.threads.submit(one.process.mask, COMMON, LARGE) for _ in range(2)]
        quick, slow = wait(both, return_when=FIRST_COMPLETED)
        assert len(quick) == len(slow) == 1, "only one of them waits, for a time"
        assert [each.result() for each in both] == [None, None]
        assert one.mask(COMMON, LARGE) is None, "nor does a later one"
        one.child.resume()
        text = LARGE + "the other text"
        masked = wait_until(lambda: one.mask(COMMON, text), "it works again")
        assert masked.endswith("the other text"), "the answer that came late is dropped"
    assert "has not answered" in log.lines[0]


@alone
def test_what_cannot_be_sent_is_not_sent_by_half() -> None:
    log, unsendable = Log(), cast(list[str], [object()])
    with running() as one:
        assert one.mask(Rules(unsendable, (), True, KnownSecrets()), LARGE) is None
        assert not children()
        assert one.mask(COMMON, LARGE) is None
    [line] = log.lines
    assert "(TypeError)" in line


def says(answer: bytes) -> Callable[[int, int], None]:
    """What a process does that answers everything with that."""

    def serve(descriptor: int, _: int) -> None:
        connection = Connection(descriptor)
        for _ in range(2):  # the rules and the text
            connection.recv_bytes()
        os.write(descriptor, answer)
        connection.recv_bytes()

    return serve


GARBAGE = {
    "no cost": b"\0\0\0\1x",
    "no text": b"\0\0\0\x09" + program.COST.pack(1.0) + b"\xff",
    "too long": b"\xff\xff\xff\xff" + (2**62).to_bytes(8, "big") + b"x",
    "cut off": b"\0\1\0\0x",
}


@alone
def test_a_garbled_answer_is_not_used_and_ends_the_process() -> None:
    for kind, answer in GARBAGE.items():
        log = Log()
        with running(MaskingProcess(says(answer))) as one:
            assert one.mask(COMMON, LARGE) is None, kind
            assert not children(), kind
            assert one.mask(COMMON, LARGE) is None, kind
        [line] = log.lines
        assert "has failed" in line


@alone
def test_a_large_text_for_a_stopped_process_is_not_waited_for() -> None:
    with running() as one:
        one.child.suspend()
        text = LARGE * 20
        assert one.mask(COMMON, text) is None, "it is more than the socket holds"
        assert not children(), "as it may have got half of it"


@alone
def test_other_threads_and_short_texts_do_not_use_it() -> None:
    with running() as one:
        assert one.process.mask(COMMON, LARGE) is None
        assert one.mask(COMMON, LARGE[: LARGE_CHARS - 1]) is None
        assert one.mask(COMMON, LARGE[:LARGE_CHARS])


@alone
def test_a_process_with_threads_is_not_forked() -> None:
    process, is_over = MaskingProcess(), threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    process.start()
    assert "threads run already" in process.obstacle
    assert not children()
    is_over.set()
    thread.join()
    process.end()


@alone
def test_it_keeps_nothing_of_the_worker_and_ignores_its_signals() -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with running() as one:
        assert one.mask(COMMON, LARGE), "it has begun to work"
        assert one.child.name() == program.NAME
        assert one.child.nice() > psutil.Process().nice()
        assert os.getsid(one.child.pid) == one.child.pid
        for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2"):
            one.child.send_signal(signal.Signals[f"SIG{name}"])
        assert one.mask(COMMON, LARGE)
        one.child.send_signal(signal.SIGALRM)
        wait_until(lambda: not is_alive(one.child), "other signals end it")


@alone
def test_it_holds_no_descriptor_but_its_socket() -> None:
    with running() as one:
        assert one.mask(COMMON, LARGE), "it has begun to work"
        links = [str(each.readlink()) for each in Path(f"/proc/{one.child.pid}/fd").iterdir()]
    assert sorted(links)[:3] == [os.devnull] * 3
    assert [link.partition(":")[0] for link in sorted(links)[3:]] == ["socket"]


def can_look_into(pid: int, file: str) -> bool:
    try:
        with Path(f"/proc/{pid}/{file}").open("rb"):
            return True
    except PermissionError:
        return False


@alone
def test_others_of_its_user_cannot_look_into_it() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(SET_DUMPABLE, 1, 0, 0, 0)
    ours, theirs = os.pipe()
    if not (other := os.fork()):
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    assert can_look_into(other, "environ"), "into others they can"
    os.close(theirs)
    os.waitpid(other, 0)
    hide_memory()
    with running() as one:
        # Not even before it has done anything: it was born hidden.
        for file in ("environ", "mem", "maps"):
            assert not can_look_into(one.child.pid, file)
        assert Path(f"/proc/{one.child.pid}/environ").stat().st_uid != os.getuid()
        assert one.mask(COMMON, LARGE)
        assert not can_look_into(one.child.pid, "mem")

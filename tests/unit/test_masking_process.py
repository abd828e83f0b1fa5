"""A process of its own masks large texts as the worker would, with the secrets that are known by then."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tarsy_tasks.masking import process as program
from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.masker import build_masker
from tarsy_tasks.worker.masking_process import LARGE_CHARS, MaskingProcess, Rules, allow_in_thread, take_cost_s
from tests.processes import is_alive, own_children, read_command, wait_until

LARGE = "password: hunter2-and-more\nToken ist \ud800 streng geheim, ORDER-4711\n" * 1000
PATTERNS = [r"ORDER-\d+"]
KNOWN = "kept-in-the-vault-1"
BOTH = "another-kept-value-2"


@pytest.fixture
def process() -> Iterator[MaskingProcess]:
    started = MaskingProcess()
    yield started
    started.end()
    assert not any(program.__name__ in command for command in own_children())


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, initializer=allow_in_thread) as one:
        yield one


def masked_there(process: MaskingProcess, thread: ThreadPoolExecutor, rules: Rules, text: str) -> str:
    """What the process makes of it; the first texts are masked by the worker, until it runs."""
    return wait_until(lambda: thread.submit(process.mask, rules, text).result(), "the process answers")


def child() -> psutil.Process:
    [found] = [each for each in psutil.Process().children() if program.__name__ in read_command(each)]
    return found


def test_a_large_text_is_masked_as_in_the_worker(process: MaskingProcess, thread: ThreadPoolExecutor) -> None:
    known = KnownSecrets([KNOWN])
    text = LARGE + KNOWN
    here = build_masker(["security"], patterns=PATTERNS, known=known).mask(text)
    assert masked_there(process, thread, Rules(["security"], PATTERNS, True, known), text) == here
    assert "hunter2" not in here
    assert KNOWN not in here
    assert thread.submit(take_cost_s).result() > 0, "its time counts as that of the server"
    assert masked_there(process, thread, Rules([], (), False, known), text) == LARGE + "__MASKED__"


def test_secrets_that_change_reach_the_process(process: MaskingProcess, thread: ThreadPoolExecutor) -> None:
    known = KnownSecrets()
    rules, text = Rules([], (), False, known), LARGE + BOTH
    assert masked_there(process, thread, rules, text) == text
    known.add([BOTH])
    assert masked_there(process, thread, rules, text) == LARGE + "__MASKED__"


def test_a_process_that_fails_masks_nothing_by_half(process: MaskingProcess, thread: ThreadPoolExecutor) -> None:
    rules = Rules(None, (), True, KnownSecrets())
    masked_there(process, thread, rules, LARGE)
    failed = child()
    failed.send_signal(signal.SIGSTOP)
    answer = thread.submit(process.mask, rules, LARGE)
    failed.kill()
    assert answer.result() is None
    wait_until(lambda: not is_alive(failed), "it is gone")
    assert masked_there(process, thread, rules, LARGE)
    assert child().pid != failed.pid


def test_other_threads_and_short_texts_do_not_use_it(process: MaskingProcess, thread: ThreadPoolExecutor) -> None:
    rules = Rules(None, (), True, KnownSecrets())
    assert process.mask(rules, LARGE) is None
    assert thread.submit(process.mask, rules, LARGE[: LARGE_CHARS - 1]).result() is None
    assert not any(program.__name__ in command for command in own_children())

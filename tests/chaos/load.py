"""Calls in flight, how each of them was answered, and whether that agrees with what the servers wrote down."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, read_audit
from tests.faults.ledger import UNSAFE, Ledger
from tests.processes import wait_until

__all__ = ["Answer", "Load", "Tally"]

MIX = ("look", "renew", UNSAFE)
"""Harmless, harmless to repeat, and not."""
_NOTED = 5
_NOTE_CHARACTERS = 160
_HANG_S = 10.0
"""How much later than its deadline a call may be answered before it counts as lost."""
_TOLD_S = 10.0


@dataclass
class Answer:
    """One call and what became of it.

    Attributes:
        result: None while it is in flight, and when `error` was raised instead.
        seconds: From the moment of the call until its answer.
    """

    key: str
    tool: str
    begun_at: float
    result: ToolResult | None = None
    error: Exception | None = None
    seconds: float | None = None

    @property
    def is_unsafe(self) -> bool:
        return self.tool == UNSAFE

    @property
    def is_lost(self) -> bool:
        """Nobody answered: the call hangs, or the agent gave up on it."""
        if self.result is not None:
            return self.result.error_code is ErrorCode.NO_ANSWER
        return not isinstance(self.error, BrokerUnavailable)


@dataclass
class Tally:
    """A line of the table.

    Attributes:
        doubled: Unsafe calls that were executed more than once.
        findings: What should not be, in words; a row passes when there is nothing.
        notes: What is worth knowing beside the verdict.
    """

    calls: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    lost: int = 0
    doubled: int = 0
    longest_s: float = 0.0
    findings: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def expect(self, holds: object, what: str) -> None:
        """Note `what` unless it holds."""
        if not holds:
            self.findings.append(what)

    def expect_answers_within(self, seconds: float) -> None:
        self.expect(self.longest_s <= seconds, f"the longest wait was {self.longest_s:.1f} s, above {seconds:g} s")

    def expect_soon(self, holds: Callable[[], object], what: str, seconds: float = 15.0) -> None:
        """Note `what` unless it holds within so long."""
        try:
            wait_until(holds, what, seconds)
        except AssertionError as error:
            self.findings.append(str(error))

    def find(self, what: str, keys: Iterable[str]) -> None:
        """Note `what` if there are such calls."""
        found = sorted(keys)
        if found:
            self.findings.append(f"{len(found)} {what}: {', '.join(found[:4])}{', …' if found[4:] else ''}")


class Load:
    """Calls of one server, each waited for in a thread of its own.

    Args:
        redis: Where the audit lies.
        name: Begin of the keys of its calls, so that loads on one ledger can be told apart.
        timeout_s: The deadline of each call.
    """

    def __init__(
        self, tools: ToolExecutor, redis: Any, server: str, ledger: Ledger, name: str, timeout_s: float
    ) -> None:
        self._tools = tools
        self._redis = redis
        self._since = float(redis.time()[0])
        self._server = server
        self._ledger = ledger
        self._name = name
        self._timeout_s = timeout_s
        self._threads: list[threading.Thread] = []
        self._going_on = threading.Event()
        self._lock = threading.Lock()
        self.answers: list[Answer] = []

    def start(self, count: int, *, kinds: Sequence[str] = MIX, wait_s: tuple[float, float] = (0.5, 1.0)) -> None:
        """Put calls in flight, their tools from `kinds` in turn; each takes between the two `wait_s`."""
        for _ in range(count):
            self._spawn(self._call_once, kinds, wait_s)

    def keep_going(self, threads: int, *, kinds: Sequence[str] = MIX, wait_s: tuple[float, float] = (0.2, 0.5)) -> None:
        """Put new calls in flight as old ones are answered, until `pause`."""
        self._going_on.set()
        for _ in range(threads):
            self._spawn(self._call_on, kinds, wait_s)

    def pause(self) -> None:
        """No new calls; those in flight go on."""
        self._going_on.clear()

    def unanswered(self) -> list[Answer]:
        with self._lock:
            return [answer for answer in self.answers if answer.seconds is None]

    def begun(self, pid: int | None = None) -> list[str]:
        """Keys of its calls that a server began to execute, in the worker `pid` or in any."""
        lines = self._ledger.lines("run")
        return [line[2] for line in lines if line[2].startswith(self._name + "-") and pid in (None, int(line[3]))]

    def wait_for_begun(self, count: int, pid: int | None = None, timeout_s: float = 30.0) -> None:
        wait_until(lambda: len(self.begun(pid)) >= count, f"{count} calls of {self._name} run in {pid}", timeout_s)

    def wait(self) -> None:
        """Until all are answered, or it is sure that some never will be."""
        self.pause()
        deadline = time.monotonic() + self._timeout_s + _HANG_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def tally(self, *, unknown: bool = False, unavailable: bool = False, repeats: bool = True) -> Tally:
        """Wait for all answers and hold them against the ledger.

        Args:
            unknown: Whether unsafe calls that may have begun may be answered `unknown`.
            unavailable: Whether calls that did not run may be answered so.
            repeats: Whether calls that are harmless to repeat may have been executed more than once.
        """
        self.wait()
        with self._lock:
            answers = list(self.answers)
        tally = tally_answers(answers, Counter(self.begun()), unknown=unknown, unavailable=unavailable, repeats=repeats)
        self._hold_against_audit(answers, tally)
        return tally

    def _hold_against_audit(self, answers: Sequence[Answer], tally: Tally) -> None:
        """Each call that was answered has one entry, and that says what its agent was told."""
        told = {answer.key: answer.result for answer in answers if answer.result is not None and not answer.is_lost}

        def entries() -> list[AuditEntry]:
            found = read_audit(self._redis, AuditFilter(since=self._since), limit=1_000_000).entries
            return [entry for entry in found if entry.call_id.startswith(self._name + "-")]

        with suppress(AssertionError):
            # Agents tell afterwards.
            wait_until(lambda: told.keys() <= {entry.call_id for entry in entries()}, "", _TOLD_S)
        found = entries()
        counts = Counter(entry.call_id for entry in found)
        tally.find("without an entry in the audit", told.keys() - counts.keys())
        tally.find("with several entries in the audit", (key for key, count in counts.items() if count > 1))
        tally.find(
            "of which the audit says something else",
            (
                entry.call_id
                for entry in found
                if (result := told.get(entry.call_id)) is not None and entry.outcome is not result.outcome
            ),
        )

    def _spawn(self, target: Any, *arguments: Any) -> None:
        # A daemon: a call that never ends is a finding, and must not keep the tests from ending.
        thread = threading.Thread(target=target, args=arguments, name=f"load-{self._name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _call_on(self, kinds: Sequence[str], wait_s: tuple[float, float]) -> None:
        while self._going_on.is_set():
            self._call_once(kinds, wait_s)

    def _call_once(self, kinds: Sequence[str], wait_s: tuple[float, float]) -> None:
        with self._lock:
            number = len(self.answers)
            answer = Answer(f"{self._name}-{number}", kinds[number % len(kinds)], time.monotonic())
            self.answers.append(answer)
        least_s, most_s = wait_s
        arguments: dict[str, Any] = {"key": answer.key, "wait_s": least_s + (most_s - least_s) * (number % 7) / 6}
        try:
            answer.result = self._tools.execute(
                ToolCall(id=answer.key, name=f"{self._server}.{answer.tool}", arguments=arguments)
            )
        except Exception as error:
            answer.error = error
        answer.seconds = time.monotonic() - answer.begun_at


def tally_answers(
    answers: Sequence[Answer], runs: Mapping[str, int], *, unknown: bool, unavailable: bool, repeats: bool
) -> Tally:
    """What the answers say, and where that is not what was promised or not what the ledger says."""
    tally = Tally(calls=len(answers))
    outcomes = {answer.key: _outcome(answer) for answer in answers}
    tally.outcomes = Counter(outcomes.values())
    tally.longest_s = max((answer.seconds or float("inf") for answer in answers), default=0.0)
    lost = [answer.key for answer in answers if answer.is_lost]
    doubled = [answer.key for answer in answers if answer.is_unsafe and runs.get(answer.key, 0) > 1]
    tally.lost, tally.doubled = len(lost), len(doubled)
    tally.find("lost", lost)
    tally.find("doubled", doubled)
    if not repeats:
        tally.find(
            "harmless calls executed more than once",
            (answer.key for answer in answers if not answer.is_unsafe and runs.get(answer.key, 0) > 1),
        )
    for answer in answers:
        if answer.result is not None and answer.result.outcome is Outcome.OK:
            tally.expect(answer.result.content == answer.key, f"{answer.key} got another answer than its own")
    ended = {outcome: [key for key, each in outcomes.items() if each == outcome] for outcome in tally.outcomes}
    tally.find("`ok` that were never executed", (key for key in ended.get("ok", []) if not runs.get(key)))
    for outcome in ("unavailable", "rejected"):
        tally.find(f"`{outcome}` that were executed", (key for key in ended.get(outcome, []) if runs.get(key)))
    unsafe = {answer.key for answer in answers if answer.is_unsafe}
    allowed = {"ok", "lost", *(["unknown"] if unknown else []), *(["unavailable", "refused"] if unavailable else [])}
    for outcome in sorted(ended.keys() - allowed):
        tally.find(f"`{outcome}`", ended[outcome])
    if unknown:
        tally.find(
            "`unknown` that are harmless to repeat", (key for key in ended.get("unknown", []) if key not in unsafe)
        )
    endings = Counter(_words(answer) for answer in answers if outcomes[answer.key] != "ok")
    tally.notes += [f"{count} × {words}" for words, count in endings.most_common(_NOTED)]
    return tally


def _words(answer: Answer) -> str:
    """Why it is not `ok`."""
    if answer.result is None:
        return f"{type(answer.error).__name__}: {answer.error}"[:_NOTE_CHARACTERS]
    return f"{answer.result.error_code}: {answer.result.content}"[:_NOTE_CHARACTERS]


def _outcome(answer: Answer) -> str:
    if answer.is_lost:
        return "lost"
    return "refused" if answer.result is None else str(answer.result.outcome)

"""Each row fails when its mechanism is taken out: `python -m tests.chaos.breaks`. So does the test of what a call costs
when a call is made dearer.

Owns the table of what to take out, and plays a row against a copy of the package on disk that was broken so.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

__all__ = ["BREAKS", "COUNTS", "Break"]

ROOT = Path(__file__).parents[2]
COUNTS = "counts"
"""Stands for a row: the test of what a warm call costs."""
_COUNTS_TEST = "tests/calls/test_call_counts.py"


@dataclass(frozen=True)
class Break:
    """A mechanism, and how to take it out.

    Attributes:
        row: The row that has to notice, or `COUNTS`.
        file: Of the package.
        text: What stands there, exactly once.
        replacement: What to write in its place.
    """

    row: str
    mechanism: str
    file: str
    text: str
    replacement: str

    def apply(self, root: Path) -> None:
        """Break the package that lies below `root`.

        Raises:
            LookupError: The text is not there, or not only once: the table has to follow the package.
        """
        path = root / "tarsy_tasks" / self.file
        source = path.read_text()
        if source.count(self.text) != 1:
            raise LookupError(f"{self.file} has {source.count(self.text)} times: {self.text!r}")
        path.write_text(source.replace(self.text, self.replacement))


BREAKS = [
    Break(
        "killed",
        "calls whose lease has lapsed go back to their queue",
        "broker/sweep.py",
        "redis.call('ZRANGEBYSCORE', leases, '-inf', now - lease_s, 'LIMIT', 0, sweep_limit)",
        "{}",
    ),
    Break(
        "killed",
        "what another worker began is not begun again",
        "broker/steps.py",
        "if state == 'begun' and current ~= owner and current ~= earlier_owner",
        "if false and current ~= earlier_owner",
    ),
    Break(
        "grace",
        "a worker ends what it runs when its grace is over",
        "worker/process/pool.py",
        "        self._shutdown.done()\n        self._leases.depart()\n        self._end_all()\n",
        "        self._wait_for_all(60)\n",
    ),
    Break(
        "stopped",
        "a worker that is stopped lets its calls finish",
        "worker/process/pool.py",
        "        self._wait_for_all(self._context.settings.shutdown_grace_s)\n",
        "",
    ),
    Break(
        "rolling",
        "a worker that is stopped lets its calls finish",
        "worker/process/pool.py",
        "        self._wait_for_all(self._context.settings.shutdown_grace_s)\n",
        "",
    ),
    Break(
        "slow",
        "leases are renewed while a call runs",
        "worker/process/lease.py",
        "            deliveries.renew(mine.values())\n",
        "            pass\n",
    ),
    Break(
        "network-workers",
        "an answer that Redis does not take at once is stored by a thread",
        "worker/process/plain_calls.py",
        'at once: %s", error)\n            self._hand_over(answer)\n',
        'at once: %s", error)\n',
    ),
    Break(
        "clocks",
        "deadlines are of the clock of Redis",
        "broker/clock.py",
        "return monotonic_s + self._offset",
        "return time.time()",
    ),
    Break(
        "hang",
        "a server gets only some of a worker's slots",
        "worker/process/bulkhead.py",
        "server.max_concurrency or half",
        "self._slots or 1",
    ),
    Break(
        "poison",
        "a message is delivered three times at most",
        "broker/sweep.py",
        "QUARANTINE_FROM_DELIVERY = 3",
        "QUARANTINE_FROM_DELIVERY = 1000",
    ),
    Break(
        "neighbour",
        "our in-flight table has key names of its own",
        "broker/keys.py",
        'LEASES = "tarsy:leases"',
        'LEASES = "unacked_index"',
    ),
    Break(
        "agent",
        "results expire",
        "celery_app.py",
        '"result_expires": 3600',
        '"result_expires": None',
    ),
    Break(
        "connections",
        "an agent reads the answers that were published while it was not subscribed",
        "agent/reply_listener.py",
        "            if body is not None:\n                self._complete(",
        "            if False:\n                self._complete(",
    ),
    Break(
        "restarted",
        "a result waits for a Redis that is away",
        "broker/result_backend.py",
        "        if self.stopping is None:\n            return super().ensure(fun, args, **policy)\n",
        "        return fun(*args)\n",
    ),
    Break(
        "frozen",
        "an answer that Redis does not take at once is stored by a thread",
        "worker/process/plain_calls.py",
        'at once: %s", error)\n            self._hand_over(answer)\n',
        'at once: %s", error)\n',
    ),
    Break(
        "network-reset",
        "a result waits for a Redis that is away",
        "broker/result_backend.py",
        "        if self.stopping is None:\n            return super().ensure(fun, args, **policy)\n",
        "        return fun(*args)\n",
    ),
    Break(
        "network-stall",
        "an answer that Redis does not take at once is stored by a thread",
        "worker/process/plain_calls.py",
        'at once: %s", error)\n            self._hand_over(answer)\n',
        'at once: %s", error)\n',
    ),
    Break(
        "nobody",
        "what nobody waits for is taken back",
        "broker/steps.py",
        "    if redis.pcall('ZREM', place, tag) == 1 or is_delayed then",
        "    if false then",
    ),
    Break(
        "large",
        "a result that Redis refuses is answered",
        "broker/result_backend.py",
        "next(refusals) >= _REFUSALS",
        "False",
    ),
    Break(
        "bad-messages",
        "what is no message does not end the worker",
        "broker/kombu_transport.py",
        "        except Exception as error:\n            # Its text may hold",
        "        except ZeroDivisionError as error:\n            # Its text may hold",
    ),
    Break(
        "run-killed",
        "a run hears that its state was lost with the worker",
        "worker/calls/isolated_sessions.py",
        "                raise lost_session_error(call.server, claim.reason or ended)\n",
        "                return self._hold(key, call, shared, claim.reason or ended)\n",
    ),
    Break(
        "run-stopped",
        "a run hears that its state was lost with the worker",
        "worker/calls/isolated_sessions.py",
        "                raise lost_session_error(call.server, claim.reason or ended)\n",
        "                return self._hold(key, call, shared, claim.reason or ended)\n",
    ),
    Break(
        "run-forgotten",
        "a session that has a state is not opened again",
        "worker/sessions/isolated_connection.py",
        "        return self._may_reopen or (self._session is not None and not self.has_state)\n",
        "        return True\n",
    ),
    Break(
        "run-restarted",
        "a result waits for a Redis that is away",
        "broker/result_backend.py",
        "        if self.stopping is None:\n            return super().ensure(fun, args, **policy)\n",
        "        return fun(*args)\n",
    ),
    Break(
        "run-cut",
        "an agent reads the answers that were published while it was not subscribed",
        "agent/reply_listener.py",
        "            if body is not None:\n                self._complete(",
        "            if False:\n                self._complete(",
    ),
    Break(
        COUNTS,
        "a call reads no settings",
        "worker/calls/intake.py",
        "    info = CallInfo()\n",
        "    from tarsy_tasks.settings import load_settings\n\n    load_settings()\n    info = CallInfo()\n",
    ),
    Break(
        COUNTS,
        "a call waits for no time to pass",
        "worker/process/plain_calls.py",
        "        backend: ResultBackend = self._pool.app.backend\n",
        "        backend: ResultBackend = self._pool.app.backend\n        await asyncio.sleep(0.001)\n",
    ),
    Break(
        COUNTS,
        "a result is dumped once",
        "worker/process/plain_calls.py",
        "            key, value = backend.encode_answer(self.id, result)\n",
        '            key, value = backend.encode_answer(self.id, result)\n            __import__("json").dumps(key)\n',
    ),
]


@click.command()
@click.option("--only", multiple=True, metavar="ROW", help="The breaks of this row; repeatable.")
def main(only: tuple[str, ...]) -> None:
    """Take each mechanism out of a copy of the package, and play the row that has to notice; exit with 1 if one does
    not.
    """
    unnoticed = 0
    for each in BREAKS:
        if only and each.row not in only:
            continue
        said = _play_broken(each)
        unnoticed += said is None
        click.echo(f"{each.row}, without: {each.mechanism}: {'NOT NOTICED' if said is None else f'noticed: {said}'}")
    sys.exit(1 if unnoticed else 0)


def _play_broken(each: Break) -> str | None:
    """What the row says first; None if it passes."""
    with tempfile.TemporaryDirectory(prefix="broken-") as name:
        copy = Path(name)
        for folder in ("tarsy_tasks", "tests"):
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
        each.apply(copy)
        # Workers run in directories of their own: it is this path that has them import the copy.
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        if each.row == COUNTS:
            return _count_broken(copy, environment)
        command = [sys.executable, "-m", "tests.chaos", "--short", "--only", each.row]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        # The exit code does not tell: it is 1 for a row that fails, and for a package that cannot be imported.
        if not re.search(rf"^{each.row}: (pass|FAIL) in ", done.stdout, re.MULTILINE):
            raise RuntimeError(f"{each.row} could not be played: {done.stdout}{done.stderr}")
        findings = re.findall(r"^  - (.*)$", done.stdout, re.MULTILINE)
        if findings and findings[0].startswith("AssertionError: it ended with"):  # a worker could not even start
            raise RuntimeError(f"{each.row} could not be played: {done.stdout}{done.stderr}")
        return f"{findings[0]:.120}" if findings else None


def _count_broken(copy: Path, environment: dict[str, str]) -> str | None:
    """The counts that the test says are wrong; None if it passes."""
    shutil.copy(ROOT / "pyproject.toml", copy)
    options = ["-q", "-p", "no:cacheprovider", "--timeout=900", "-k", "worker"]
    command = [sys.executable, "-m", "pytest", *options, _COUNTS_TEST]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    wrong = re.findall(r"^E +(\{.* != .*\})$", done.stdout, re.MULTILINE)
    if done.returncode != bool(wrong):  # it failed for another reason
        raise RuntimeError(f"{_COUNTS_TEST} could not be run: {done.stdout}{done.stderr}")
    return "; ".join(wrong) or None


if __name__ == "__main__":
    main()

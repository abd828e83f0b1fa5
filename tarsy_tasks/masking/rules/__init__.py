"""The rules of masking: which names, prefixes and lines hold secrets. `masking` applies them."""

__all__ = ["read_table"]


def read_table(text: str) -> dict[str, list[str]]:
    """A table of patterns, by name: a line has a name and its first pattern, or, indented twice, one more pattern, or,
    indented three times, the rest of the pattern above."""
    table: dict[str, list[str]] = {}
    name = ""
    for line in filter(None, text.split("\n")):
        content = line.strip()
        if line.startswith(" " * 12):
            table[name][-1] += content
        elif line.startswith(" " * 8):
            table[name].append(content)
        else:
            name, _, pattern = content.partition(": ")
            table[name] = [pattern]
    return table

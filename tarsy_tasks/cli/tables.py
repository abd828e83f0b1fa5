"""Tables for a terminal that fit its width, with nothing cut off.

Owns the layout: columns without a value are left out, and where the rest is too wide, the widest columns become lines
below their row. States have colours.
"""

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["TableLayout"]

_GAP = 2
_INDENT = 4
_FIXED = 2
"""So many columns are never moved: what a row is about, and the first thing to know about it. Nor are states."""
_STATES = {
    "green": ("healthy", "ok", "works"),
    "yellow": ("degraded", "tool_error", "rejected", "cancelled"),
    "red": ("unhealthy", "unavailable", "unknown", "timeout", "fails"),
    "dim": ("disabled",),
}
_COLOURS = {state: colour for colour, states in _STATES.items() for state in states}
_STATE_COLUMNS = ("health", "outcome", "state")


class TableLayout:
    """Where the cells of a table stand.

    Args:
        columns: Their names.
        rows: By which the widths are decided. Others may follow.
        width: Of the terminal, in characters.
    """

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> None:
        self._names = columns
        self._width = width
        known = [list(map(_line, row)) for row in rows]
        cells = {
            place: max(cell_len(name), *(cell_len(row[place]) for row in known))
            for place, name in enumerate(columns)
            if any(row[place] for row in known)
        }
        # Those that may be moved, the widest last.
        moved = sorted(
            (place for place in [*cells][_FIXED:] if columns[place] not in _STATE_COLUMNS), key=cells.__getitem__
        )
        while sum(cells.values()) + _GAP * (len(cells) - 1) > width and moved:
            del cells[moved.pop()]
        self._widths = cells

    def header(self) -> Text:
        """The names of the columns."""
        return self._join({place: Text(self._names[place], "bold") for place in self._widths})

    def render(self, row: Sequence[str], console: Console) -> Iterator[Text]:
        """A row, and the lines below it."""
        cells = {place: _cell(self._names[place], cell) for place, cell in enumerate(row) if cell}
        yield self._join(cells)
        moved = [
            Text.assemble((f"{self._names[place]}: ", "dim"), cell)
            for place, cell in cells.items()
            if place not in self._widths
        ]
        for line in Text("  ").join(moved).wrap(console, max(20, self._width - _INDENT)) if moved else ():
            yield Text(" " * _INDENT).append_text(line)

    def _join(self, cells: dict[int, Text]) -> Text:
        line = Text()
        for place, width in self._widths.items():
            cell = cells.get(place, Text())
            line.append_text(cell).append(" " * (width - cell.cell_len + _GAP))
        line.rstrip()
        return line


def _line(cell: str) -> str:
    return make_visible(" ".join(cell.split()))


def _cell(column: str, cell: str) -> Text:
    text = _line(cell)
    return Text(text, _COLOURS.get(text, "") if column in _STATE_COLUMNS else "")

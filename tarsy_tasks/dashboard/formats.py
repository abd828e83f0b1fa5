"""Numbers and times as texts for the pages.

They return texts that are escaped like any other; only `time_tag` returns markup, which contains nothing but a time.
"""

import math
from datetime import UTC, datetime

__all__ = ["count", "duration", "estimate", "field_time", "ratio", "share", "size", "time_tag", "utc_time"]

_THIN_SPACE = "\u202f"
_NONE = "–"


def count(number: int | None) -> str:
    """12345 → 12 345."""
    return _NONE if number is None else f"{number:,}".replace(",", _THIN_SPACE)


def duration(seconds: float | None, digits: int = 3) -> str:
    """0.0123 → 12.3 ms, 3.2 → 3.2 s, 130 → 2 min 10 s."""
    if seconds is None or not math.isfinite(seconds):
        return _NONE
    if seconds < 60:
        number, unit = (seconds, "s") if float(f"{seconds:.{digits}g}") >= 1 else (seconds * 1000, "ms")
        rounded = float(f"{number:.{digits}g}")
        return f"{rounded:g} {unit}" if rounded >= 0.1 else "0 ms"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    numbers = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join([f"{number} {unit}" for number, unit in numbers if number][:2])


def estimate(seconds: float | None) -> str:
    """The same with fewer digits, for estimates: 0.0123 → 12 ms."""
    return duration(seconds, 2)


def share(part: float | None) -> str:
    """0.9987 → 99.8 %; rounded down, so that only 1 becomes 100 %."""
    return _NONE if part is None else f"{math.floor(part * 1000) / 10:g} %"


def ratio(part: int, whole: int) -> str:
    """3 of 1000 → 0.3 %; rounded up, so that only 0 becomes 0 %."""
    return f"{math.ceil(1000 * part / whole) / 10:g} %" if whole else _NONE


def size(size_bytes: int | None) -> str:
    """20480 → 20 KiB."""
    if size_bytes is None:
        return _NONE
    number, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.3g} {unit}" if unit != "B" else f"{size_bytes} B"


def utc_time(at: float | None) -> str:
    """Seconds since the epoch → 2026-11-21 17:03:09 UTC."""
    try:
        return datetime.fromtimestamp(at or math.nan, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return _NONE


def field_time(at: float | None) -> str:
    """The same for a field of a form; empty for a time that there is not."""
    return "" if (shown := utc_time(at)) == _NONE else shown.removesuffix(" UTC").replace(" ", "T")


def time_tag(at: float | None) -> str:
    """Markup for a time, which the page's script replaces with its age."""
    shown = utc_time(at)
    if at is None or shown == _NONE:
        return _NONE
    stamp = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return f'<time datetime="{stamp}" title="{shown}">{shown}</time>'

"""Owns how people are shown an amount: a duration, a size in bytes, a point in time. Programs get the plain numbers."""

from __future__ import annotations

import datetime
import math

_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def duration_text(seconds: float) -> str:
    """Returns a duration as `0.25 s`, `27.7 s`, `1 min 5 s`, `2 h 3 min` or `1 d 2 h 3 min`.

    The longer it is, the fewer small units it shows.
    """
    if not math.isfinite(seconds):
        return "without limit"
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if seconds < 10:
        return f"{seconds:.3g} s"
    if seconds < _MINUTE_S:
        return f"{math.floor(seconds * 10) / 10:g} s"
    whole = int(seconds)
    days, hours = whole // _DAY_S, whole % _DAY_S // _HOUR_S
    minutes, rest = whole % _HOUR_S // _MINUTE_S, whole % _MINUTE_S
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (0 if days or hours else rest, "s")]
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount)


def size_text(count: float) -> str:
    """Returns a number of bytes as `144 B` or `1.5 MiB`."""
    if abs(count) < 1024:
        return f"{count:g} B"
    amount = float(count)
    for unit in _UNITS:
        amount /= 1024
        if abs(amount) < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{amount:,.1f}".removesuffix(".0") + f" {unit}"


def moment_text(ms: float) -> str:
    """Returns milliseconds since 1970 as ISO local time, with the distance to UTC: `2026-11-22T20:55:08.047+01:00`.

    A time that the calendar cannot show stays a number of milliseconds.
    """
    try:
        moment = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{ms:.0f} ms"
    return moment.isoformat(timespec="milliseconds")

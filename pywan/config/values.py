"""Owns how a value that a user wrote (in Python, in a file, on a command line) gets its type.

Each function takes the value and `what`: the thing and the attribute, as an error names them. It returns the value in
its type, and raises ConfigurationError if it cannot.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pywan.base.names import check_name, is_host, quoted
from pywan.errors import ConfigurationError

MAX_WAIT_S = 2**31 - 1
WRITTEN: Literal["written"] = "written"
DISK_LEVELS = ("true", WRITTEN, "false")
# A change waits for the disk, for its log, or for nothing.
DiskLevel = bool | Literal["written"]
_DIRECTORY_MB = 1, 2**31 - 1


def to_bool(value: Any, what: str) -> bool:
    """Reads `true` or `false`, given as a bool or in any case of letters."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in ("true", "false"):
        raise ConfigurationError(f"{what}: {value!r} is not one of true, false")
    return word == "true"


def to_disk_level(value: Any, what: str) -> DiskLevel:
    """Reads `true`, `false` or `written`."""
    if isinstance(value, bool):
        return value
    word = to_word(value, what, DISK_LEVELS)
    return WRITTEN if word == WRITTEN else word == "true"


def to_int(
    value: Any, what: str, lowest: int | None = None, highest: int | None = None, also: Mapping[int, str] | None = None
) -> int:
    """Reads a whole number within the range, or one of `also`: numbers with a meaning of their own."""
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", value):
        number = int(value)
    if number is None:
        raise ConfigurationError(f"{what}: {value!r} is not a whole number{_range(lowest, highest, also)}")
    if also is not None and number in also:
        return number
    if (lowest is not None and number < lowest) or (highest is not None and number > highest):
        raise ConfigurationError(
            f"{what}: {number} is out of range; allowed is a number{_range(lowest, highest, also)}"
        )
    return number


def _range(lowest: int | None, highest: int | None, also: Mapping[int, str] | None) -> str:
    others = "".join(f", or {number} ({meaning})" for number, meaning in (also or {}).items())
    if lowest is not None and highest is not None:
        return f" from {lowest} to {highest}{others}"
    return f" of at least {lowest}{others}" if lowest is not None else ""


def to_wait_time(value: Any, what: str) -> float:
    """Reads a number of seconds of at least 0. -1 means "until it is done", and is returned as infinity."""
    number: Any = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not is_number or not (number == -1 or 0 <= number <= MAX_WAIT_S):
        raise ConfigurationError(
            f"{what}: {value!r} is not a number of seconds from 0 to {MAX_WAIT_S}, nor -1 (without limit)"
        )
    return math.inf if number == -1 else float(number)


LONGEST_CALL_S = 86_400


def to_call_timeout(value: Any, what: str) -> float | None:
    """Reads a number of seconds from 0.1 to LONGEST_CALL_S. None, or an empty text: it is not given."""
    number: Any = value
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    if not isinstance(number, (int, float)) or isinstance(number, bool) or not 0.1 <= number <= LONGEST_CALL_S:
        raise ConfigurationError(f"{what}: {value!r} is not a number of seconds from 0.1 to {LONGEST_CALL_S}")
    return float(number)


def to_word(value: Any, what: str, words: Iterable[str], *, upper: bool = False) -> str:
    """Reads one of `words`, in any case of letters."""
    word = value.strip() if isinstance(value, str) else ""
    word = word.upper() if upper else word.lower()
    if word not in words:
        raise ConfigurationError(f"{what}: {value!r} is not one of {', '.join(words)}")
    return word


def to_text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{what}: {value!r} is not text")
    return value


def to_host(value: Any, what: str) -> str:
    """Reads a host's name or address. "": none is given."""
    if to_text(value, what) and not is_host(value):
        raise ConfigurationError(f"{what}: {value!r} is not a host name or address")
    return str(value)


def to_region_name(value: Any, what: str) -> str:
    """Reads a region's name, with or without the slash with which Geode's paths begin."""
    return check_name(value.lstrip("/") if isinstance(value, str) else value, what)


def to_names(value: Any, what: str) -> tuple[str, ...]:
    """Reads ids from a comma-separated string or an iterable. Returns each once, in order."""
    return tuple(check_name(word, what) for word in to_words(value, what))


def to_words(value: Any, what: str) -> tuple[str, ...]:
    """Reads texts from a comma-separated string or an iterable. Returns each once, in order."""
    if value is None:
        return ()
    if not isinstance(value, Iterable):
        raise ConfigurationError(f"{what}: {quoted(value)} is no list of names")
    parts = value.split(",") if isinstance(value, str) else list(value)
    names: list[str] = []
    for part in parts:
        if not isinstance(part, str):
            raise ConfigurationError(f"{what}: {quoted(part)} is not a name")
        if not part.strip():
            continue
        name = part.strip()
        if name in names:
            raise ConfigurationError(f"{what}: {quoted(name)} is there twice; name each once")
        names.append(name)
    return tuple(names)


def to_directories(value: Any, what: str) -> tuple[tuple[str, int | None], ...]:
    """Reads pairs of a path and its limit in MB (None: no limit).

    They are given as gfsh's `path#MB,path`, as one path, or as an iterable of paths and pairs.
    """
    if isinstance(value, os.PathLike):
        return (_to_directory(value, what),)
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Iterable) else [value]
    return tuple(_to_directory(part, what) for part in parts)


def _to_directory(part: Any, what: str) -> tuple[str, int | None]:
    if isinstance(part, str):
        path, separator, size = part.partition("#")
        part = path, size if separator else None
    elif isinstance(part, os.PathLike):
        part = part, None
    try:
        path, size = part
        path = os.fspath(path)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{what}: {part!r} is not a directory; write a path, or a pair of a path and its size in MB (None: no"
            " limit)"
        ) from None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigurationError(f"{what}: {path!r} is not the name of a directory")
    return path, None if size is None else to_int(size, what, *_DIRECTORY_MB)


def to_percent(value: Any, what: str) -> float:
    """Returns a percentage from 0 to 100. ConfigurationError if it is none."""
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 100:
        raise ConfigurationError(f"{what} {value!r} is not a percentage from 0 to 100 (0: it does nothing)")
    return number

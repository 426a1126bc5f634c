"""Owns the rule for names, and how text from others is shown in logs and on terminals."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Collection
from typing import Any, TypeGuard

from pywan.errors import ConfigurationError, PywanError

MAX_NAME_CHARACTERS = 255
MAX_HOST_CHARACTERS = 255
SHOWN_CHARACTERS = 80  # An error quotes so much of a value from outside.

_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\-]*")
_HOST = re.compile(r"[A-Za-z0-9_.:%\-]+")
# Characters that a terminal or a reader of logs obeys instead of showing them: controls (ESC, newline, C1), characters
# that change the direction of writing or have no width, line separators, and halves of surrogate pairs, which cannot
# even be written.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_OBEYED_BUT_LINES = re.compile(_OBEYED.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def is_name(value: Any) -> TypeGuard[str]:
    """Returns whether `value` can name a thing. There is one rule for members, locators, senders, regions and disk
    stores.

    A name holds ASCII letters, digits, `_`, `.` and `-`. It does not begin with `-`, and is not `.` or `..`, because it
    becomes a part of file names, messages and lines of logs.
    """
    return (
        isinstance(value, str)
        and len(value) <= MAX_NAME_CHARACTERS
        and _NAME.fullmatch(value) is not None
        and value not in (".", "..")
    )


def check_name(value: Any, what: str, error: type[PywanError] = ConfigurationError) -> str:
    """Returns `value` if it is a name. Otherwise it raises `error`."""
    if not is_name(value):
        raise error(
            f"{what}: {quoted(value)} is not a name (letters, digits, _ . and -, not first -, at most"
            f" {MAX_NAME_CHARACTERS})"
        )
    return value


def near_name(name: Any, known: Collection[str], before: str = "; ", after: str = "") -> str:
    """Returns words that ask whether the known name was meant that is nearest to `name`, between `before` and `after`.
    "": none is near."""
    near = difflib.get_close_matches(str(name), [*known], 1)
    if not near:  # Ids of sites are short: one letter of two that differs is near, too.
        near = [each for each in known if len(each) == len(str(name)) > 1 and _differ(each, str(name)) == 1][:1]
    return f"{before}did you mean {near[0]!r}?{after}" if near else ""


def _differ(one: str, other: str) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


def is_host(value: Any) -> TypeGuard[str]:
    """Returns whether `value` has the form of a host name or an IP address."""
    return isinstance(value, str) and len(value) <= MAX_HOST_CHARACTERS and _HOST.fullmatch(value) is not None


class _Cut(reprlib.Repr):
    """A `repr` that is cut, and that can show integers of any size."""

    def repr_int(self, value: int, level: int) -> str:
        try:
            return super().repr_int(value, level)
        except ValueError:  # Python writes no decimal numbers with so many digits.
            return f"{'-' if value < 0 else ''}0x{abs(value) >> (value.bit_length() - 64):x}..."


def quoted(value: Any, limit: int = SHOWN_CHARACTERS) -> str:
    """Returns a value from outside as an error quotes it: on one line, without characters that a terminal obeys, and
    cut.

    It never fails.
    """
    cut = _Cut()  # It reads no more of a large value than is shown.
    cut.maxstring = cut.maxother = cut.maxlong = limit
    cut.maxdict = cut.maxlist = cut.maxtuple = 8
    return printable(f"{cut.repr(value):.{limit}}")


def is_printable(text: str) -> bool:
    """Returns whether a terminal shows every character of the text, and obeys none."""
    return _OBEYED.search(text) is None


def printable(text: str, *, lines: bool = False) -> str:
    r"""Returns `text` with every character that a terminal would obey written as `\\xNN` or `\\uNNNN`.

    That includes the ends of lines and tabs, unless `lines` are kept.
    """
    return (_OBEYED_BUT_LINES if lines else _OBEYED).sub(_escaped, text)


def printable_json(text: str) -> str:
    """Does the same for JSON text. The result means the same JSON."""
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")

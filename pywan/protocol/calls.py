"""Owns the words in which a member says why a call failed. Calls themselves are compiled (pywan._core.call_session)."""

from __future__ import annotations

import re
from typing import Any

from pywan import errors
from pywan.base.names import printable


def error_of(words: bytes) -> errors.PywanError:
    """Returns the error that the other member had: "[kind of a pywan error] words". RemoteError for other kinds."""
    text = printable(words.rstrip(b"\0").decode("utf-8", "replace"))
    named = re.match(r"\[(\w+)\] ", text)
    cls: Any = getattr(errors, named[1], None) if named else None
    if named and isinstance(cls, type) and issubclass(cls, errors.PywanError):
        error: errors.PywanError = cls(text[named.end() :])
        return error
    return errors.RemoteError(text)

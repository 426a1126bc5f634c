"""Owns how a text becomes a key or value of a type that is named beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pywan.errors import ConfigurationError


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("allowed are true, false")
    return text.lower() == "true"


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": _boolean,
    "json": json.loads,
    "hex": bytes.fromhex,
    "bytes": lambda text: text.encode(),
    **{
        f"java.lang.{name}": make
        for name, make in (
            ("String", str),
            ("Integer", int),
            ("Long", int),
            ("Short", int),
            ("Double", float),
            ("Float", float),
            ("Boolean", _boolean),
        )
    },
}


SHORT_TYPES = tuple(name for name in _TYPES if "." not in name)


def typed(text: str, type_: str, what: str) -> Any:
    """A key or value in its type, from the text on the command line."""
    try:
        return _TYPES[type_](text)
    except KeyError:
        raise ConfigurationError(
            f"{what}-type {type_!r} is not one of {', '.join(sorted(set(_TYPES) - {t for t in _TYPES if '.' in t}))}"
        ) from None
    except ValueError as error:
        raise ConfigurationError(f"{what} {text[:60]!r} is not of type {type_}: {error}") from None
    except RecursionError:
        raise ConfigurationError(f"{what} {text[:60]!r} is nested too deep") from None

"""Owns what `dir` shows of the objects that users hold: what the documents name, and nothing of how they are made."""

from __future__ import annotations


class Face:
    """Base of the classes whose objects users get. What is inside stands under names that begin with an underscore."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if not name.startswith("_") or name.endswith("__")]

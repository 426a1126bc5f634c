"""Finds the units of the core: they are one shared object, in which Python finds a unit's init function by its name."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from typing import Any

PACKAGE = __name__.rpartition(".")[0]


class Units:
    """A finder of modules, for those in one file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(f"{PACKAGE}."):
            return None
        return spec_from_loader(name, ExtensionFileLoader(name, self.file), origin=self.file)


def install() -> None:
    here = Path(__file__).parent
    for suffix in EXTENSION_SUFFIXES:
        file = here / f"_units{suffix}"
        if file.exists():
            sys.meta_path.append(Units(str(file)))  # Behind the others: what is a file of its own is theirs.
            return
    raise ImportError(f"the compiled core is not in {here}: it was not built for this Python")


install()

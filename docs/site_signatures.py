"""Gives `make docs` the signatures of methods that take a table of attributes: their keywords, and not one object."""

from __future__ import annotations

import inspect
import typing
from importlib import import_module
from typing import Any

import griffe


class Signatures(griffe.Extension):
    """Reads the signature that `pywan.config.table` made for each method decorated with `takes` or `takes_changes`."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if not any(str(decorator.value).startswith("takes") for decorator in func.decorators):
            return
        assert func.parent is not None
        cls = getattr(import_module(func.module.path), func.parent.name)
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    each.name,
                    kind=griffe.ParameterKind[each.kind.name.lower()],
                    annotation=None if each.annotation is each.empty else _shown(each.annotation),
                    default=None if each.default is each.empty else repr(each.default),
                )
                for each in inspect.signature(getattr(cls, func.name)).parameters.values()
            )
        )


def _shown(annotation: Any) -> str:
    if typing.get_origin(annotation) is None and isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")

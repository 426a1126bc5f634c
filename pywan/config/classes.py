"""Owns users' classes that are named `package.module:Class` in a file or on a command line.

It checks the methods that they need, and which of them may be named over the network.
"""

from __future__ import annotations

import difflib
import importlib
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from pywan.base.names import quoted
from pywan.config.values import to_words
from pywan.errors import ConfigurationError

CALLBACKS_MODULE = "pywan.callbacks"  # It has the classes that users derive theirs from.
_CLASS_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class ClassReference(str):
    """A name `package.module:Class` as a file holds it, with the parameters for the constructor."""

    parameters: dict[str, str]

    def __new__(cls, name: str, parameters: Mapping[str, str] | None = None) -> ClassReference:
        self = super().__new__(cls, name)
        self.parameters = dict(parameters or {})
        return self


def to_class_references(value: Any, what: str) -> tuple[Any, ...]:
    """Returns classes, instances or names, given in an iterable or in a comma-separated string. ConfigurationError for
    others."""
    if value is None:
        return ()
    if isinstance(value, ClassReference):
        parts: list[Any] = [value]
    elif isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        parts = [value]
    return tuple(_to_class_reference(part, what) for part in parts)


def _to_class_reference(value: Any, what: str) -> Any:
    """Checks one reference.

    A name may also have its plain form `{"class": "package.module:Class", "parameters": {"name": "value"}}` (see
    `to_plain`).
    """
    if value is None:
        raise ConfigurationError(f"{what}: None is not a class, an instance or a name package.module:Class")
    if isinstance(value, dict):
        parameters = value.get("parameters", {})
        if not (
            set(value) <= {"class", "parameters"}
            and isinstance(value.get("class"), str)
            and isinstance(parameters, dict)
            and all(isinstance(word, str) for pair in parameters.items() for word in pair)
        ):
            raise ConfigurationError(
                f"{what}: {value!r:.120} names no class; write"
                " {'class': 'package.module:Class', 'parameters': {'name': 'value'}}"
            )
        value = ClassReference(value["class"], parameters)
    if isinstance(value, str) and not _CLASS_NAME.fullmatch(value):
        raise ConfigurationError(f"{what}: {value!r} does not name a class; write package.module:Class")
    return ClassReference(value) if isinstance(value, str) and not isinstance(value, ClassReference) else value


def import_class(name: str, what: str = "class") -> type:
    """Returns the class called `package.module:Class`. ConfigurationError says which half of the name is wrong, and
    why."""
    if not isinstance(name, str) or not _CLASS_NAME.fullmatch(name):
        raise ConfigurationError(f"{what}: {name!r} does not name a class; write package.module:Class")
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # The module's own code runs here. The user must see whatever it raises.
        let_through(error)
        raise ConfigurationError(
            f"{what}: {name!r} cannot be imported: {type(error).__name__}: {error} (is the directory of"
            f" {module_name!r} in --classpath or PYTHONPATH?)"
        ) from error
    named: Any = module
    for part in class_name.split("."):
        named = getattr(named, part, None)
        # Checked at each step, so that a name does not lead through modules that this one imports.
        if not isinstance(named, type):
            raise ConfigurationError(f"{what}: module {module_name!r} has no class {class_name!r}")
    cls: type = named
    return cls


def make_instance(value: Any, what: str, methods: Iterable[str] = ()) -> Any:
    """Returns the object for a class reference, a class or an instance. It must have `methods`.

    A class is checked for them before it is called: calling a class that is not a callback may do anything.
    """
    cls = import_class(value, what) if isinstance(value, str) else value
    parameters = value.parameters if isinstance(value, ClassReference) else {}
    _check_methods(cls, what, methods)
    if not isinstance(cls, type):
        _check_spelling(cls, what, methods)
        return cls
    try:
        made = cls(**parameters)
    except BaseException as error:
        let_through(error)
        raise ConfigurationError(
            f"{what}: {cls.__module__}:{cls.__qualname__} cannot be created: {type(error).__name__}: {error}"
        ) from error
    _check_methods(made, what, methods)
    _check_spelling(made, what, methods)
    return made


def overrides(callback: Any, method: str) -> bool:
    """Returns whether an object has a `method` of its own: not the one of a base class in `pywan.callbacks`, which does
    nothing."""
    found = getattr(callback, method, None)
    own = getattr(found, "__func__", found)
    return found is not None and getattr(own, "__module__", None) != CALLBACKS_MODULE


def _plain_name(method: str) -> str:
    return method.replace("_", "").lower()


def _check_spelling(made: Any, what: str, methods: Iterable[str]) -> None:
    """Raises ConfigurationError for an object that inherits the methods which do nothing, and has only methods with
    other names, or one whose name is nearly right. Nobody would ever call what its author wrote."""
    cls = type(made)
    bases = [base for base in cls.__mro__[1:] if base.__module__ == CALLBACKS_MODULE]
    wanted = {_plain_name(method): method for method in methods if not overrides(made, method)}
    if not bases or not wanted:
        return
    written = [
        name
        for name in dir(cls)
        if not name.startswith("_") and callable(getattr(cls, name)) and not any(hasattr(base, name) for base in bases)
    ]
    for name in written:
        close = difflib.get_close_matches(_plain_name(name), wanted, 1, 0.85)
        if close:
            raise ConfigurationError(
                f"{what}: {cls.__module__}:{cls.__qualname__} has a method {name}, which is never called; did you mean"
                f" {wanted[close[0]]}?"
            )
    if written and len(wanted) == len(list(methods)):
        raise ConfigurationError(
            f"{what}: {cls.__module__}:{cls.__qualname__} has {', '.join(written)}, and none of the methods that"
            f" are called: {', '.join(methods)}"
        )


def _check_methods(value: Any, what: str, methods: Iterable[str]) -> None:
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if missing:
        cls = value if isinstance(value, type) else type(value)
        raise ConfigurationError(f"{what}: {cls.__module__}:{cls.__qualname__} has no method {', '.join(missing)}")


def let_through(error: BaseException) -> None:
    """Raises an error of user code again if it is not the code's own: Ctrl-C, which reaches the main thread.

    A SystemExit is an error like any other.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


# The classes that may be named from outside

_CALLBACK_PATTERN = re.compile(r"\*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\.\*|:[A-Za-z_][\w.]*)?")


def to_callback_patterns(value: Any, what: str) -> tuple[str, ...]:
    """Returns the patterns of an iterable or a comma-separated string.

    - `package.module:Class` allows that class.
    - `package.module` allows the module's classes.
    - `package.*` allows the classes of the package and of all below it.
    - `*` allows any class.
    """
    patterns = to_words(value, what)
    for pattern in patterns:
        if not _CALLBACK_PATTERN.fullmatch(pattern):
            raise ConfigurationError(
                f"{what}: {quoted(pattern)} names no classes; write package.module:Class,"
                " package.module, package.* or *"
            )
    return patterns


def _is_allowed(name: str, pattern: str) -> bool:
    """Returns whether a pattern allows the class of that name."""
    module, _, _ = name.partition(":")
    if pattern.endswith(".*"):
        return f"{module}.".startswith(pattern[:-1])
    return pattern in ("*", module, name)


def check_allowed(references: Iterable[Any], allowed: tuple[str, ...], what: str) -> None:
    """Checks references that came over the network, before anything is imported.

    ConfigurationError if one of them is not among the `allowed` classes, or is not a name.
    """
    for reference in references:
        if not isinstance(reference, ClassReference):
            raise ConfigurationError(
                f"{what} holds {reference!r:.80}, which names no class; write package.module:Class"
            )
        if not any(_is_allowed(reference, pattern) for pattern in allowed):
            raise ConfigurationError(
                f"{what} names {reference}, and what comes over the network may name only classes that this member"
                f" allows ({', '.join(allowed) or 'none'}); start it with"
                f" --allow-callbacks={reference.partition(':')[0]} (or the"
                " property allow-callbacks, or Cache(allow_callbacks=...)), or name the class in its cache.xml"
            )


def removes_all(value: Any) -> bool:
    """Returns whether a value says "no filters". gfsh writes CLEAR for that."""
    return isinstance(value, str) and value.strip() in ("", "CLEAR")

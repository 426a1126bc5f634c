"""Owns what a fork does to a member's objects. In the child they refuse every call, and give up what they hold of the
system.

A child has copies of its parent's objects, and none of its threads. Its locks may be held by threads that do not exist
there, and its sockets are the parent's. So an object works only in the process that made it. The child may make objects
of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from pywan import _core
from pywan.errors import IllegalStateError

C = TypeVar("C", bound=type)
T = TypeVar("T")

STRAYED = 70  # The exit status of a child that came back out of a callback.

_inherited: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def error(what: str) -> IllegalStateError:
    """Returns the error for a call of an object that was made by the process from which this one was forked."""
    return IllegalStateError(
        f"{what} belongs to the process that this one (pid {os.getpid()}) was forked from, and works only there;"
        " nothing was done. Make a Cache, a Locator or a connection in the child itself, or start the child without"
        ' fork (multiprocessing\'s "spawn", subprocess)'
    )


def in_child(thing: T, let_go: Callable[[T], None]) -> T:
    """Makes every child call `let_go(thing)`, as long as `thing` exists. Returns `thing`.

    A child that kept a port or a lock open would keep it from the parent's successor.
    """
    _inherited[thing] = let_go
    return thing


def _let_go() -> None:
    for thing, let_go in list(_inherited.items()):
        with contextlib.suppress(OSError):  # The descriptor may be closed already.
            let_go(thing)


os.register_at_fork(after_in_child=_let_go)


def of_one_process(describe: Callable[[Any], str], *, nothing_in_child: tuple[str, ...] = ()) -> Callable[[C], C]:
    """Decorates a class whose objects work only in the process that made them.

    In a child, the public methods and properties, and `__enter__`, raise IllegalStateError. The methods named in
    `nothing_in_child` end an object. The child has nothing of it to end, so there they do nothing and return None.
    `describe(self)` names the object in the error; it must not use checked methods.
    """

    def decorate(cls: C) -> C:
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name not in ("__enter__", "__exit__"):
                continue
            ends = name in nothing_in_child or name == "__exit__"
            if isinstance(member, property):
                get, set_ = member.fget, member.fset
                setattr(
                    cls,
                    name,
                    property(
                        _checked(get, describe, ends) if get is not None else None,
                        _checked(set_, describe, ends) if set_ is not None else None,
                        doc=member.__doc__,
                    ),
                )
            elif callable(member) and not isinstance(member, (type, classmethod, staticmethod)):
                setattr(cls, name, _checked(member, describe, ends))
        make: Callable[..., None] | None = vars(cls).get("__init__")
        if make is None:  # Its base is decorated, too, and notes the process.
            return cls

        @functools.wraps(make)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - It becomes the class's.
            self._forks = _core.forks()
            make(self, *args, **kwargs)

        setattr(cls, "__init__", __init__)
        return cls

    return decorate


def _checked(method: Callable[..., Any], describe: Callable[[Any], str], ends: bool) -> Callable[..., Any]:
    """Returns a method that raises an error in a child, or does nothing there if it `ends` the object."""
    forks = _core.forks

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._forks != forks():
            if ends:
                return None
            raise error(describe(self))
        return method(self, *args, **kwargs)

    return checked


def is_inherited(thing: Any) -> bool:
    """Returns whether an object of a class `of_one_process` was made by another process."""
    return bool(thing._forks != _core.forks())


def end_strayed_child(where: str) -> None:
    """Ends a child that a user's callback forked, and that came back out of the callback. The code that follows is the
    parent's work."""
    print(
        f"pywan: a callback forked, and its child (pid {os.getpid()}) came back into {where}, which is its parent's;"
        " the child ends. End it inside the callback (os._exit), or start it without fork",
        file=sys.stderr,
        flush=True,
    )
    os._exit(STRAYED)

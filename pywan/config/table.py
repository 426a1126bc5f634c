"""Owns how the tables of attributes (attributes.py) are read.

It reads what users gave, checks it, alters attributes, shows them, and gives methods typed keyword arguments. A table
is a dataclass with fields of the form `name: Annotated[type, Attribute(...)] = default`. Attributes are listed nowhere
else: keyword arguments, cache.xml, the command line and the documents are made from the rows.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Concatenate,
    ParamSpec,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pywan.base.names import near_name, quoted
from pywan.config.classes import ClassReference, removes_all, to_class_references
from pywan.config.values import to_bool, to_int, to_names, to_text, to_word
from pywan.errors import ConfigurationError
from pywan.limitations import Limitation

P = ParamSpec("P")
Owner = TypeVar("Owner")
Made = TypeVar("Made", bound="Attributes")
Result = TypeVar("Result")
Called = TypeVar("Called", bound=Callable[..., Any])


@dataclass(frozen=True)
class Attribute:
    """What a row of a table says besides name, type and default."""

    about: str  # What it does, in a few words. The command line's help and the documents show it.
    _: dataclasses.KW_ONLY
    more: str = ""  # Text that only the documents show.
    unit: str = ""
    lowest: int | None = None
    highest: int | None = None
    also: Mapping[int, str] = field(default_factory=dict)  # Numbers outside the range that have a meaning of their own.
    words: tuple[str, ...] = ()  # If given, the value is one of these words.
    unset: str = "none"  # The words for "not given", if there is no default.
    read: Callable[[Any, str], Any] | None = None  # (value, what) -> value. None: the type says how it is read.
    methods: tuple[str, ...] = ()  # If given, the attribute names classes of the user's, which need these methods.
    option: str = ""  # Its name on the command line, if that is another one.
    aliases: tuple[str, ...] = ()  # Other names on the command line.
    element: str = ""  # The element of a cache.xml that holds it, if it is not the element of its thing.
    is_local: bool = False  # Only the member's own configuration may give it: nothing that comes over the network.
    is_folder: bool = False  # What comes over the network may name only folders that the member has already.


@dataclass(frozen=True)
class Row:
    """An attribute of a thing."""

    name: str  # The name in Python.
    type: Any
    default: Any  # `dataclasses.MISSING`: the attribute must be given.
    is_positional: bool
    attribute: Attribute

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def geode_name(self) -> str:
        """The name in a cache.xml."""
        return self.attribute.element if self.attribute.methods else self.name.replace("_", "-")

    @property
    def option(self) -> str:
        """The name on the command line."""
        return self.attribute.option or self.geode_name

    @property
    def is_flag(self) -> bool:
        return bool in self._types

    @property
    def is_one_class(self) -> bool:
        """Whether it names one class of the user's, and not several."""
        return bool(self.attribute.methods) and get_origin(self.type) is None

    @property
    def may_be_none(self) -> bool:
        return types.NoneType in self._types

    @property
    def _types(self) -> tuple[Any, ...]:
        return get_args(self.type) if get_origin(self.type) in (Union, types.UnionType) else (self.type,)

    def read(self, value: Any, what: str) -> Any:
        """Returns `value`, which may be text, in the attribute's type. ConfigurationError if it cannot be used."""
        a = self.attribute
        if value is None and self.may_be_none:
            return None
        if a.methods:
            return self._read_classes(value, what)
        if a.read is not None:
            return a.read(value, what)
        if a.words:
            is_unset = value in (None, "") or (value == "none" and self.may_be_none)
            return self.default if is_unset else to_word(value, what, a.words)
        if bool in self._types:
            return to_bool(value, what)
        if int in self._types:
            return to_int(value, what, a.lowest, a.highest, a.also)
        if get_origin(self.type) is not None and str not in self._types:
            return to_names(value, what)
        return to_text(value, what) or (None if self.may_be_none else "")

    def _read_classes(self, value: Any, what: str) -> Any:
        """Reads a tuple of classes, or one class if the type is not a list."""
        references = () if removes_all(value) else to_class_references(value, what)
        if not self.is_one_class:
            return references
        if len(references) > 1:
            raise ConfigurationError(f"{what}: {len(references)} classes are named; there can be one")
        return references[0] if references else None

    def limits(self) -> str:
        """Returns what the value may be, in words. "": the type says it."""
        a = self.attribute
        if a.words:
            return ", ".join(a.words)
        numbers = [f"{number}: {meaning}" for number, meaning in a.also.items()]
        if a.lowest is not None and a.highest is not None:
            numbers.insert(0, f"{a.lowest} or more" if a.highest >= 2**31 - 1 else f"{a.lowest} to {a.highest:,}")
        return "; ".join(numbers)

    def help(self) -> str:
        """Returns the help of the command line: what it does, what else it may be, and its default."""
        a = self.attribute
        words = f": {', '.join(a.words)}" if a.words else ""
        parts = [a.about + words, *(f"{number}: {meaning}" for number, meaning in a.also.items())]
        is_unset = self.default in (None, (), "")
        if self.is_required or (is_unset and self.attribute.unset == Attribute.unset):
            return "; ".join(parts)
        return f"{'; '.join(parts)} ({self.shown_default()})"

    def shown_default(self) -> str:
        """Returns the default in words."""
        value = self.default
        if self.is_required:
            return "required"
        if value is None or value in ((), ""):
            return self.attribute.unset
        if isinstance(value, tuple):
            return ", ".join(map(str, value))
        return f"{value} {self.attribute.unit}".strip() if not isinstance(value, bool) else str(value).lower()


class Attributes:
    """The base of the attributes of senders, receivers, regions and disk stores. The derived dataclass is the table."""

    kind: ClassVar[str]  # The word for the thing in commands and in cache.xml.
    title: ClassVar[str]  # The words for the thing in errors.
    error: ClassVar[type[ConfigurationError]] = ConfigurationError
    # Geode's attributes that are refused by name, each with the reason why it has no effect here.
    refused: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def make(cls, /, *named: Any, **given: Any) -> Self:
        """Returns checked attributes. The values may be typed, or be text. Raises `error` if they cannot be used."""
        positional = [row.name for row in table(cls) if row.is_positional]
        if len(named) > len(positional):
            raise TypeError(
                f"{len(named)} arguments without names; only {', '.join(positional)} may be given without a name"
            )
        values = {**dict(zip(positional, named, strict=False)), **given}
        what = _title(cls, values)
        try:
            _check_names(cls, what, values)
            made = cls(**_read(cls, what, values))
            made.check()
        except ConfigurationError as error:
            raise error if isinstance(error, cls.error) else cls.error(str(error)) from error.__cause__
        return made

    def check(self) -> None:
        """Raises ConfigurationError if attributes contradict each other. It also fills in attributes that follow from
        others."""

    def altered(self, changes: type, /, **given: Any) -> Self:
        """Returns a checked replica with the given attributes changed. `changes` is the table of those that can be
        altered."""
        what, allowed = self.what, tuple(row.name for row in table(changes))
        known = [row.name for row in table(type(self))]
        if not given:
            raise self.error(f"{what}: nothing to alter; name one of {', '.join(allowed)}")
        for name in given:
            near = near_name(name, allowed)
            if name not in allowed and name not in known and near:
                raise self.error(f"{what}: no attribute {quoted(name)}{near}; {', '.join(allowed)} can be altered")
            if name not in allowed:
                raise self.error(
                    f"{what}: {name} cannot be altered; only {', '.join(allowed)} can:"
                    f" destroy the {self.title} and create it again"
                )
        try:
            altered = dataclasses.replace(self, **_read(changes, what, given))  # type: ignore[type-var]
            altered.check()
        except ConfigurationError as error:
            raise error if isinstance(error, self.error) else self.error(str(error)) from error.__cause__
        return altered

    @property
    def what(self) -> str:
        """The thing, as errors name it."""
        return _title(type(self), vars(self))

    @property
    def label(self) -> str:
        """The thing, as the log names it."""
        name = naming(type(self))
        return f"{self.title} {getattr(self, name)}" if name is not None else self.title


def _title(cls: type[Attributes], values: Mapping[str, Any]) -> str:
    name = naming(cls)
    return f"{cls.title} {values.get(name)!r:.120}" if name is not None else cls.title


def _check_names(cls: type[Attributes], what: str, values: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for attributes that are refused, unknown or missing."""
    rows = table(cls)
    known = [row.name for row in rows]
    for name in values:
        if name in cls.refused:
            why = Limitation.WITHOUT_EFFECT.refusal(attribute=name, why=cls.refused[name])
            raise ConfigurationError(f"{what}: {why}")
    unknown = [name for name in values if name not in known]
    if unknown:
        near = near_name(unknown[0], known)
        raise ConfigurationError(f"{what}: no attribute {quoted(unknown[0])}{near}; there are {', '.join(known)}")
    for row in rows:
        if row.is_required and values.get(row.name) is None:
            raise ConfigurationError(f"{what}: the attribute {row.name} is required")


def _read(cls: type, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    rows = {row.name: row for row in table(cls)}
    return {name: rows[name].read(value, f"{what}: {name}") for name, value in values.items()}


_tables: dict[type, tuple[Row, ...]] = {}


def table(cls: type) -> tuple[Row, ...]:
    """Returns the rows of a table. Those that must be given come first."""
    if cls not in _tables:
        _tables[cls] = _rows(cls)
    return _tables[cls]


def _rows(cls: type) -> tuple[Row, ...]:
    hints = get_type_hints(cls, include_extras=True)
    rows = []
    for each in dataclasses.fields(cls):
        hint = hints[each.name]
        if get_origin(hint) is not Annotated or not isinstance(hint.__metadata__[0], Attribute):
            raise TypeError(f"{cls.__name__}.{each.name} has no Attribute(...) in its annotation")
        rows.append(Row(each.name, hint.__origin__, each.default, not each.kw_only, hint.__metadata__[0]))
    return tuple(sorted(rows, key=lambda row: (not row.is_positional, not row.is_required)))


def naming(cls: type) -> str | None:
    """Returns the attribute that names the thing. None: a member has only one such thing."""
    return next((row.name for row in table(cls) if row.is_positional), None)


def takes(
    cls: Callable[P, Made],
) -> Callable[[Callable[[Owner, Made], Result]], Callable[Concatenate[Owner, P], Result]]:
    """Gives a method the typed arguments of a table. The method is called with the attributes, made and checked."""

    def decorate(method: Callable[[Owner, Made], Result]) -> Callable[Concatenate[Owner, P], Result]:
        made_of: Any = cls

        @functools.wraps(method)
        def call(self: Owner, /, *args: P.args, **given: P.kwargs) -> Result:
            return method(self, made_of.make(*args, **given))

        return _with_signature(call, made_of)

    return decorate


def takes_changes(
    cls: Callable[P, Any],
) -> Callable[[Callable[[Owner, dict[str, Any]], Result]], Callable[Concatenate[Owner, P], Result]]:
    """Does the same for a method that changes a thing. The method is called with what was given, as it was given."""

    def decorate(method: Callable[[Owner, dict[str, Any]], Result]) -> Callable[Concatenate[Owner, P], Result]:
        @functools.wraps(method)
        def call(self: Owner, /, *args: P.args, **given: P.kwargs) -> Result:
            if args:
                raise TypeError(f"{method.__name__}() takes attributes by name, as {method.__name__}(name=value)")
            return method(self, dict(given))

        return _with_signature(call, cls)

    return decorate


def _with_signature(call: Called, cls: Any) -> Called:
    """Gives a function the signature that `help` shows, and editors that look at the running program."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    shown = [
        inspect.Parameter(
            row.name,
            own.POSITIONAL_OR_KEYWORD if row.is_positional else own.KEYWORD_ONLY,
            default=own.empty if row.is_required else row.default,
            annotation=row.type,
        )
        for row in table(cls)
    ]
    setattr(call, "__signature__", inspect.Signature([own, *shown]))
    return call


def to_plain(attributes: Any) -> dict[str, Any]:
    """Returns attributes as a map of plain values, for messages, tables and JSON. Classes and instances
    become names."""
    return {each.name: _plain(getattr(attributes, each.name)) for each in dataclasses.fields(attributes)}


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, ClassReference) and value.parameters:
        return {"class": str(value), "parameters": dict(value.parameters)}
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)  # A class or a function has a name of its own.
    return f"{named.__module__}:{named.__qualname__}"

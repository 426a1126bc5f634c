"""Owns a site's cluster configuration: the things that its members are to have, and how the replicas of the site's
locators become one.

A *thing* is a disk store, a gateway sender, a region or the gateway receiver, with the attributes that it was given.
All other attributes have their defaults. An *entry* is a thing with the revision of its last change. A removed thing
leaves an entry without attributes, so that a locator that was away does not bring it back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pywan.base.names import is_name, printable, quoted
from pywan.config.attributes import (
    CALLBACK_METHODS,
    THINGS,
    AsyncEventQueueAttributes,
    SenderAttributes,
    check_callbacks_allowed,
    check_not_local,
)
from pywan.config.table import Attributes, naming, to_plain
from pywan.errors import ConfigurationError, ProtocolError

KINDS = tuple(THINGS)
MAX_THINGS = 4096
MAX_REMOVED = 1024  # The limit of removed things that are remembered. The oldest are forgotten first.
MAX_THING_BYTES = 64 * 1024  # The limit for one thing as JSON.
MAX_BYTES = 1024 * 1024  # The limit for all entries as JSON. They must fit into one control message.
MAX_REVISION = 2**53 - 1  # Every reader of JSON accepts numbers up to this.
MAX_STEP = 2**32  # A neighbour's revisions may be so far ahead. So no message can use up the numbers.
VERSION = 2

Thing = dict[str, Any]  # {"kind", "name", "attributes"}
Entry = dict[str, Any]  # A thing with "revision" and "id". Its attributes are None after it was removed.


def make_attributes(kind: Any, name: str, attributes: Mapping[str, Any]) -> Attributes:
    """Returns the attributes of a thing as a member that makes it has them. ConfigurationError if they cannot
    be used."""
    cls = THINGS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ConfigurationError(
            f"{quoted(kind)} is no kind of thing in a cluster configuration; there are {', '.join(KINDS)}"
        )
    for given in attributes:
        if given in ("id", "name"):
            raise ConfigurationError(f"{quoted(kind)} {quoted(name)}: {given} is no attribute that can be given")
    return cls.make(*([name] if naming(cls) is not None else []), **attributes)


def check_thing(kind: Any, name: Any, attributes: Any) -> Thing:
    """Returns the thing with the attributes that it was given, each in its type. ConfigurationError if no member could
    make it."""
    if not (
        isinstance(kind, str)
        and isinstance(name, str)
        and isinstance(attributes, dict)
        and all(isinstance(key, str) for key in attributes)
    ):
        raise ConfigurationError("a thing of the cluster configuration needs a kind, a name and a map of attributes")
    given = {key: value for key, value in attributes.items() if value is not None and key not in ("id", "name")}
    for attribute in CALLBACK_METHODS:  # Classes must be given by name: a class object of a program cannot be stored.
        check_callbacks_allowed({attribute: given.get(attribute)}, ("*",), f"{kind} {quoted(name)}")
    made = make_attributes(kind, name, given)
    plain = to_plain(made)
    for key in given:
        _check_printable(plain[key], f"{kind} {quoted(name)}: {key}")
    name = getattr(made, "id", None) or getattr(made, "name", "")
    return {"kind": kind, "name": name, "attributes": {key: plain[key] for key in given}}


def _check_printable(value: Any, what: str) -> None:
    """Checks that a value can be shown, and be written as XML."""
    if isinstance(value, str) and printable(value) != value:
        raise ConfigurationError(
            f"{what}: {quoted(value)} holds a character that cannot be shown, so it is not kept in the cluster"
            " configuration"
        )
    inside = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    for item in inside:
        _check_printable(item, what)


def in_order_of_making(things: Iterable[Thing]) -> list[Thing]:
    """Returns each thing behind those that it needs: kind by kind, and a colocated region behind its parent."""
    things = list(things)
    parents = {thing["name"]: _parent(thing) for thing in things if thing["kind"] == "region"}
    depths: dict[str, int] = {}
    for name in parents:
        path: list[str] = []
        ancestor: str | None = name
        while ancestor is not None and ancestor in parents and ancestor not in depths:
            depths[ancestor] = 0  # Regions that wait for each other end here. A member reports that as an error.
            path.append(ancestor)
            ancestor = parents[ancestor]
        depth = depths.get(ancestor or "", -1)
        for each in reversed(path):
            depth += 1
            depths[each] = depth

    def place(thing: Thing) -> tuple[int, int, str]:
        depth = depths.get(thing["name"], 0) if thing["kind"] == "region" else 0
        return KINDS.index(thing["kind"]), depth, thing["name"]

    return sorted(things, key=place)


def _parent(region: Thing) -> str | None:
    name = region["attributes"].get("colocated_with")
    return name.lstrip("/") if isinstance(name, str) else None


# Kinds of which `alter` checks what it makes together.
ALTERED: dict[str, type[SenderAttributes] | type[AsyncEventQueueAttributes]] = {
    each.kind: each for each in (SenderAttributes, AsyncEventQueueAttributes)
}


class ClusterConfiguration:
    """The entries of one locator. It is not thread-safe.

    Two configurations with the same entries are equal in all that they tell others.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._sizes: dict[tuple[str, str], int] = {}  # The size of each thing as JSON. Removed things are not in it.
        self._bytes = 0  # The sum of the sizes.
        self._revision = 0  # The highest revision that was ever seen.
        self._digest = ""

    def things(self) -> list[Thing]:
        """Returns what a member is to have, in the order in which it makes it."""
        return in_order_of_making(
            {"kind": entry["kind"], "name": entry["name"], "attributes": entry["attributes"]}
            for entry in self._entries.values()
            if entry["attributes"] is not None
        )

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """Returns the attributes of a thing. None: it is not there."""
        entry = self._entries.get((kind, name))
        return entry["attributes"] if entry is not None else None

    @property
    def count(self) -> int:
        """The number of things. Removed ones are not counted."""
        return len(self._sizes)

    def entries(self) -> list[Entry]:
        """Returns all entries, the oldest change first."""
        return sorted(self._entries.values(), key=_age)

    def digest(self) -> str:
        """Returns a text that is the same for the same entries only."""
        if not self._digest:
            import hashlib  # It loads OpenSSL.

            lines = [f"{entry['revision']} {entry['id']} {entry['kind']} {entry['name']}\n" for entry in self.entries()]
            self._digest = hashlib.blake2b("".join(lines).encode(), digest_size=12).hexdigest()
        return self._digest

    # Changes. Each one returns whether it changed anything.

    def put(self, kind: Any, name: Any, attributes: Any, id: str) -> bool:
        """Makes the thing have these attributes, whatever it had before."""
        thing = check_thing(kind, name, attributes)
        check_not_local(thing["attributes"], f"{kind} {quoted(name)}")
        if self.find(kind, thing["name"]) == thing["attributes"]:
            return False
        entry = self._next(thing, id)
        self._check_room(entry)
        self._store(entry)
        return True

    def alter(self, kind: Any, name: Any, changes: Any, id: str) -> bool:
        """Changes some attributes of a thing. A thing that is not there belongs to a member alone: nothing changes
        then."""
        if not isinstance(kind, str) or not isinstance(name, str) or not isinstance(changes, dict):
            raise ConfigurationError(
                "an alteration of the cluster configuration needs a kind, a name, a map of attributes"
            )
        before = self.find(kind, name)
        if before is None:
            return False
        if kind in ALTERED:
            plain = to_plain(ALTERED[kind].make(name, **before).altered(**changes))
            changes = {key: plain[key] for key in changes}
        return self.put(kind, name, {**before, **changes}, id)

    def remove(self, kind: Any, name: Any, id: str) -> bool:
        """Removes a thing."""
        if not isinstance(kind, str) or not isinstance(name, str):
            raise ConfigurationError("a removal from the cluster configuration needs a kind and a name")
        if self.find(kind, name) is None:
            return False
        self._store(self._next({"kind": kind, "name": name, "attributes": None}, id))
        self._forget_oldest_removed()
        return True

    def replace(self, things: Any, id: str) -> bool:
        """Makes these things the only ones. Nothing changes if one of them cannot be used."""
        if not isinstance(things, list) or not all(isinstance(thing, dict) for thing in things):
            raise ConfigurationError("the cluster configuration is replaced by a list of things")
        wanted = {}
        for thing in things:
            checked = check_thing(thing.get("kind"), thing.get("name"), thing.get("attributes"))
            check_not_local(checked["attributes"], f"{checked['kind']} {quoted(checked['name'])}")
            wanted[checked["kind"], checked["name"]] = checked
        sizes = [_size({**thing, "revision": MAX_REVISION, "id": id}) for thing in wanted.values()]
        _check_limits(len(sizes), sum(sizes))
        changed = [thing for key, thing in wanted.items() if self.find(*key) != thing["attributes"]]
        gone = [entry for key, entry in self._entries.items() if entry["attributes"] is not None and key not in wanted]
        removals = [{"kind": entry["kind"], "name": entry["name"], "attributes": None} for entry in gone]
        for thing in removals + changed:
            self._store(self._next(thing, id))
        self._forget_oldest_removed()
        return bool(changed or gone)

    def merge(self, entries: Any) -> bool:
        """Takes in another locator's entries, all of them or none. For each thing the newest entry counts.

        Returns whether anything changed. ProtocolError or ConfigurationError if the entries cannot be used.
        """
        if not isinstance(entries, list) or len(entries) > MAX_THINGS + MAX_REMOVED:
            raise ProtocolError(f"a cluster configuration is a list of at most {MAX_THINGS + MAX_REMOVED} entries")
        checked = [_check_entry(entry) for entry in entries]
        for entry in checked:
            if entry["revision"] > self._revision + MAX_STEP:
                raise ProtocolError(
                    f"{entry['kind']} {entry['name']!r} of the cluster configuration has revision {entry['revision']},"
                    f" and {self._revision} is the highest known here: so many changes there cannot have been"
                )
        before = self.digest()
        newer: dict[tuple[str, str], Entry] = {}
        for entry in checked:
            key = entry["kind"], entry["name"]
            known = newer.get(key) or self._entries.get(key)
            if known is None or _age(known) < _age(entry):
                newer[key] = entry
        sizes = dict(self._sizes)
        for key, entry in newer.items():
            sizes[key] = _size(entry) if entry["attributes"] is not None else 0
        _check_limits(sum(size > 0 for size in sizes.values()), sum(sizes.values()))
        for entry in newer.values():
            self._store(entry)
        self._forget_oldest_removed()
        return self.digest() != before

    # The file

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, "revision": self._revision, "entries": self.entries()}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> ClusterConfiguration:
        """Reads what `to_json` wrote. ConfigurationError if `text` is something else."""
        try:
            value = json.loads(text)
            if value["version"] != VERSION:
                raise ConfigurationError(f"its version is {value['version']!r:.40}, this pywan reads {VERSION}")
            made = cls()
            made._revision = value["revision"]
            if type(made._revision) is not int or not 0 <= made._revision <= MAX_REVISION:
                raise ConfigurationError(f"its revision {made._revision!r:.40} is no number from 0 to {MAX_REVISION}")
            for entry in value["entries"]:
                made._store(_check_entry(entry))
            return made
        except ConfigurationError:
            raise
        except KeyError as error:
            raise ConfigurationError(f"it has no {error.args[0]!r}") from None
        except (ValueError, TypeError, RecursionError, ProtocolError) as error:
            raise ConfigurationError(str(error)) from None

    def _next(self, thing: Thing, id: str) -> Entry:
        """Returns an entry with the next revision."""
        if self._revision >= MAX_REVISION:
            raise ConfigurationError(
                "the cluster configuration has used up its revisions; export it, stop the site's locators, move"
                " their files away, and import it"
            )
        return {**thing, "revision": self._revision + 1, "id": id}

    def _check_room(self, entry: Entry) -> None:
        if entry["attributes"] is not None:
            key = entry["kind"], entry["name"]
            things = len(self._sizes) + (key not in self._sizes)
            _check_limits(things, self._bytes - self._sizes.get(key, 0) + _size(entry))

    def _store(self, entry: Entry) -> None:
        key = entry["kind"], entry["name"]
        self._bytes -= self._sizes.pop(key, 0)
        if entry["attributes"] is not None:
            self._sizes[key] = _size(entry)
            self._bytes += self._sizes[key]
        self._entries[key] = entry
        self._revision = max(self._revision, entry["revision"])
        self._digest = ""

    def _forget_oldest_removed(self) -> None:
        removed = sorted((entry for entry in self._entries.values() if entry["attributes"] is None), key=_age)
        for entry in removed[: max(0, len(removed) - MAX_REMOVED)]:
            del self._entries[entry["kind"], entry["name"]]
            self._digest = ""


def _check_limits(things: int, size: int) -> None:
    if things > MAX_THINGS or size > MAX_BYTES:
        raise ConfigurationError(
            f"the cluster configuration has no room for {things} things of {size} bytes; the limits are {MAX_THINGS}"
            f" and {MAX_BYTES}: destroy what is not needed"
        )


def _age(entry: Entry) -> tuple[int, str]:
    """Returns the order of changes of one thing.

    If two locators change a thing at once, either change may count, but it must be the same one everywhere.
    """
    return entry["revision"], entry["id"]


def _size(entry: Entry) -> int:
    """Returns the size of an entry as JSON. ConfigurationError if it is over its limit."""
    what = f"{entry['kind']} {entry['name']!r}"
    try:
        size = len(json.dumps(entry, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{what} cannot be kept in the cluster configuration: {error}") from None
    if size > MAX_THING_BYTES:
        raise ConfigurationError(
            f"{what} takes {size} bytes in the cluster configuration; the limit is {MAX_THING_BYTES}"
        )
    return size


def _check_entry(entry: Any) -> Entry:
    """Checks the form of an entry, and returns it.

    It does not check the attributes, since another locator may be of a newer version. The members do.
    """
    if not isinstance(entry, dict):
        raise ProtocolError(f"{quoted(entry, 120)} is not an entry of a cluster configuration")
    kind, name, attributes, revision, id = (entry.get(key) for key in ("kind", "name", "attributes", "revision", "id"))
    if not (
        kind in KINDS
        and (is_name(name) or (kind, name) == ("gateway-receiver", ""))
        and isinstance(id, str)
        and 0 < len(id) <= 64
        and type(revision) is int
        and 0 < revision <= MAX_REVISION
        and (attributes is None or (isinstance(attributes, dict) and _is_flat(attributes, 4)))
    ):
        raise ProtocolError(f"{quoted(entry, 120)} is not an entry of a cluster configuration")
    return {key: entry[key] for key in ("kind", "name", "attributes", "revision", "id")}


def _is_flat(value: Any, levels: int) -> bool:
    """Returns whether a value is plain, with at most `levels` maps and lists in each other.

    Entries travel inside other messages, which have a limit.
    """
    if isinstance(value, dict):
        return levels > 0 and all(isinstance(key, str) and _is_flat(item, levels - 1) for key, item in value.items())
    if isinstance(value, list):
        return levels > 0 and all(_is_flat(item, levels - 1) for item in value)
    return value is None or isinstance(value, (str, int, float, bool))

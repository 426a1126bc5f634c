"""Owns cache.xml: it reads Geode's elements for senders, receivers, regions and disk stores into attributes, and writes
a cluster configuration as such a file.

The file may be hostile: there is no DTD and no entity, and its size has a limit. Whatever is not understood is an error
that names the line. Nothing is skipped silently.
"""

from __future__ import annotations

import os
import xml.sax
import xml.sax.handler
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from xml.sax.saxutils import escape, quoteattr

from pywan.base.files import FileError, read_regular
from pywan.config.attributes import (
    DEFAULT_STORE,
    THINGS,
    AsyncEventQueueAttributes,
    DiskStoreAttributes,
    QueueAttributes,
    ReceiverAttributes,
    RegionAttributes,
    SenderAttributes,
    rows_of,
    to_region_type,
)
from pywan.config.classes import ClassReference, import_class, to_class_references
from pywan.config.cluster import Thing, make_attributes
from pywan.config.member_attributes import RESOURCE_MANAGER, resource_manager
from pywan.config.rules import validate_attachment, validate_colocation
from pywan.config.table import Attributes, Row, naming, to_plain
from pywan.config.values import to_int, to_word
from pywan.errors import CacheXmlError, PywanError
from pywan.limitations import Limitation

MAX_FILE_BYTES = 1024 * 1024


@dataclass
class CacheConfiguration:
    """What a cache.xml asks for. A member makes the disk stores first, then senders and queues, then regions, and the
    receiver last.

    So what the receiver gets finds its regions.
    """

    senders: list[SenderAttributes] = field(default_factory=list)
    queues: list[AsyncEventQueueAttributes] = field(default_factory=list)
    receiver: ReceiverAttributes | None = None
    regions: list[RegionAttributes] = field(default_factory=list)
    disk_stores: list[DiskStoreAttributes] = field(default_factory=list)
    conflict_resolver: ClassReference | None = None
    member: dict[str, Any] = field(default_factory=dict)  # Attributes of the member, from <resource-manager>.
    source: str = ""
    # The line of each thing in the file, for example of ("region", "data").
    lines: dict[tuple[str, str], int] = field(default_factory=dict)

    def where(self, kind: str, name: str) -> str:
        """Returns `file:line` of a thing, with which an error about it begins."""
        return f"{self.source}:{self.lines.get((kind, name), 1)}"


def parse(path: str | os.PathLike[str], *, for_this_member: bool = True) -> CacheConfiguration:
    """Returns the configuration in the file. CacheXmlError, which begins with `file:line:`, if there is anything wrong
    in it.

    A file that is not `for_this_member` but for the members of a site may name classes and disk stores that only they
    have.
    """
    name = os.fspath(path)
    try:
        data = read_regular(name, MAX_FILE_BYTES).data
    except FileError as error:
        raise CacheXmlError(f"{name}:1: the file {error}") from None
    return parse_bytes(data, name, for_this_member=for_this_member)


def parse_bytes(data: bytes, source: str = "cache.xml", *, for_this_member: bool = True) -> CacheConfiguration:
    """Does the same with the bytes of a file, which errors call `source`."""
    from defusedxml import DefusedXmlException, sax as safe_sax

    if len(data) > MAX_FILE_BYTES:
        raise CacheXmlError(f"{source}:1: the file has more than {MAX_FILE_BYTES} bytes, the most that is read")
    reader = _Reader(source, for_this_member)
    parser = safe_sax.make_parser()
    parser.setContentHandler(reader)
    reader.setDocumentLocator(parser)  # `feed` needs this; `parse` would do it itself.
    parser.setErrorHandler(xml.sax.handler.ErrorHandler())
    # The parser raises an exception for a DTD, an entity or an external reference.
    parser.forbid_dtd = parser.forbid_entities = parser.forbid_external = True
    try:
        parser.feed(data)
        parser.close()
    except xml.sax.SAXParseException as error:
        line = error.getLineNumber() or 1
        raise CacheXmlError(f"{source}:{line}: not well-formed XML: {error.getMessage()}") from None
    except DefusedXmlException as error:
        known = {"DTDForbidden": "a DTD (<!DOCTYPE>)", "EntitiesForbidden": "an entity declaration"}
        what = known.get(type(error).__name__, "an external reference")
        raise CacheXmlError(
            f"{source}:{parser.getLineNumber() or 1}: {what} is not allowed here; remove it (a schema"
            " may be named by xsi:schemaLocation)"
        ) from None
    except (UnicodeError, LookupError, ValueError) as error:
        if isinstance(error, PywanError):
            raise
        raise CacheXmlError(f"{source}:1: the file cannot be decoded: {error}") from None
    return reader.result


@dataclass
class _Element:
    """An open element: its attributes, and what its children have left in it."""

    name: str
    line: int
    attributes: dict[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    text: str = ""


class _Reader(xml.sax.handler.ContentHandler):
    """Reads the elements. Each has a rule: the parents, attributes and text that it may have, and the method that
    handles it."""

    def __init__(self, source: str, for_this_member: bool) -> None:
        super().__init__()
        self._for_this_member = for_this_member
        self.result = CacheConfiguration(source=source)
        self._source = source
        self._stack: list[_Element] = []
        self._locator: Any = None  # It has getLineNumber().

    def setDocumentLocator(self, locator: Any) -> None:
        self._locator = locator

    def startElement(self, name: str, attrs: Any) -> None:
        name = name.rpartition(":")[2]
        element = _Element(name, self._line(), {})
        parent = self._stack[-1] if self._stack else None
        if parent is None and name != "cache":
            self._fail(element.line, f"the root element is <{name}>; a cache.xml has <cache> around everything")
        rule = _RULES.get(name)
        is_wrong_place = rule is None or (parent.name not in rule.parents if parent is not None else bool(rule.parents))
        if rule is None or is_wrong_place:
            allowed = sorted(
                name for name, rule in _RULES.items() if parent is not None and parent.name in rule.parents
            )
            inside = f" inside <{parent.name}>" if parent else ""
            known = f"there can be {', '.join(f'<{n}>' for n in allowed)}" if allowed else "nothing can be there"
            self._fail(element.line, f"element <{name}> is not known{inside}; {known}")
        for key, value in attrs.items():
            if key == "xmlns" or key.startswith(("xmlns:", "xsi:", "xml:")):
                continue
            if key not in rule.attributes and key not in rule.refused:
                self._fail(
                    element.line,
                    f"attribute {key!r} of <{name}> is not known; there can be {', '.join(rule.attributes) or 'none'}",
                )
            element.attributes[key] = value.strip()
        for key in rule.required:
            if not element.attributes.get(key):
                self._fail(element.line, f"<{name}> needs the attribute {key!r}")
        self._stack.append(element)

    def characters(self, content: str) -> None:
        element = self._stack[-1]
        if not _RULES[element.name].has_text and content.strip():
            self._fail(
                self._line(), f"text {content.strip()[:40]!r} inside <{element.name}>, where only elements can be"
            )
        element.text += content

    def endElement(self, name: str) -> None:
        element = self._stack.pop()
        rule = _RULES[element.name]
        if rule.has_text and not element.text.strip():
            self._fail(element.line, f"<{element.name}> is empty")
        try:
            rule.make(self, element, self._stack[-1] if self._stack else element)
        except CacheXmlError:
            raise
        except PywanError as error:
            raise CacheXmlError(f"{self._source}:{element.line}: <{element.name}>: {error}") from error

    def _line(self) -> int:
        return (self._locator.getLineNumber() if self._locator else None) or 1

    def _fail(self, line: int, message: str) -> NoReturn:
        raise CacheXmlError(f"{self._source}:{line}: {message}")

    # One method for each element. It leaves something in its parent or in the result.

    def nothing(self, element: _Element, parent: _Element) -> None:
        pass

    def class_name(self, element: _Element, parent: _Element) -> None:
        if "class" in parent.values:
            self._fail(element.line, f"a second <class-name> in <{parent.name}>")
        parent.values["class"] = element.text.strip()

    def string(self, element: _Element, parent: _Element) -> None:
        parent.values["string"] = element.text

    def parameter(self, element: _Element, parent: _Element) -> None:
        if "string" not in element.values:
            self._fail(
                element.line, f"<parameter name={element.attributes['name']!r}> needs <string>value</string> inside"
            )
        parent.values.setdefault("parameters", {})[element.attributes["name"]] = element.values["string"].strip()

    def reference(self, element: _Element, parent: _Element) -> None:
        """Reads a callback class: a <class-name>, with <parameter>s for its constructor."""
        if "class" not in element.values:
            self._fail(element.line, f"<{element.name}> needs <class-name>package.module:Class</class-name> inside")
        named = ClassReference(element.values["class"], element.values.get("parameters"))
        (made,) = to_class_references(named, "class-name") or (None,)
        if self._for_this_member:
            import_class(str(made), "class-name")
        named_so_far = parent.values.setdefault(element.name, [])
        if named_so_far and element.name in _ONE_OF_A_KIND:
            self._fail(element.line, f"a second <{element.name}>; there can be one")
        named_so_far.append(made)
        if element.name == "gateway-conflict-resolver":
            self.result.lines["conflict-resolver", ""] = element.line

    def thing(self, element: _Element, parent: _Element) -> None:
        """Reads a sender, an asynchronous event queue, a receiver or a disk store."""
        made = THINGS[element.name].make(**_snake(element.attributes), **_inside(element))
        name = naming(type(made))
        self._once(element.name, getattr(made, name) if name is not None else "", element)
        if isinstance(made, SenderAttributes):
            self.result.senders.append(made)
        elif isinstance(made, AsyncEventQueueAttributes):
            self.result.queues.append(made)
        elif isinstance(made, DiskStoreAttributes):
            self.result.disk_stores.append(made)
        else:
            assert isinstance(made, ReceiverAttributes)
            self.result.receiver = made

    def disk_dir(self, element: _Element, parent: _Element) -> None:
        size = element.attributes.get("dir-size")
        number = to_int(size, "dir-size", 1) if size is not None else None
        parent.values.setdefault(element.name, []).append((element.text.strip(), number))

    def disk_dirs(self, element: _Element, parent: _Element) -> None:
        parent.values[element.name] = element.values.get("disk-dir", [])

    def more_attributes(self, element: _Element, parent: _Element) -> None:
        parent.values[element.name] = _snake(element.attributes)

    def region_attributes(self, element: _Element, parent: _Element) -> None:
        if "region" in parent.values:
            self._fail(element.line, "a second <region-attributes> in one region")
        parent.values["region"] = element

    def region(self, element: _Element, parent: _Element) -> None:
        inner: _Element | None = element.values.get("region")
        attributes = dict(inner.attributes) if inner else {}
        refid = attributes.pop("refid", None)
        outer_refid = element.attributes.get("refid")
        if inner is not None and refid and outer_refid and refid != outer_refid:
            self._fail(
                inner.line, f"refid {refid!r} of <region-attributes> is not the region's own, {outer_refid!r}; give one"
            )
        policy, scope = attributes.pop("data-policy", None), attributes.pop("scope", None)
        inside = inner.values if inner else {}
        type_ = self._region_type(
            element, outer_refid or refid, policy, scope, bool(inside.get("partition-attributes"))
        )
        more = {**_snake(attributes), **(_inside(inner) if inner else {})}
        for name in _MORE_ATTRIBUTES:
            more |= inside.get(name, {})
        made = RegionAttributes.make(element.attributes["name"], type=type_, **more)
        self._once("region", made.name, element)
        self.result.regions.append(made)

    def _region_type(
        self,
        element: _Element,
        refid: str | None,
        policy: str | None,
        scope: str | None,
        partitioned: bool,
    ) -> str:
        """Returns the region type that refid, data-policy and scope mean together."""
        if policy is not None:
            policy = to_word(policy, "data-policy", _DATA_POLICIES)
        if policy == "preloaded":
            self._fail(element.line, Limitation.PRELOADED.refusal())
        if scope is not None:
            scope = to_word(scope, "scope", _SCOPES)
        if scope == "global":
            self._fail(element.line, Limitation.GLOBAL_SCOPE.refusal())
        from_refid = to_region_type(refid, "refid") if refid else None
        if policy is None:
            type_ = from_refid or ("PARTITION" if partitioned else "NORMAL")
        elif from_refid is not None and from_refid.startswith(_DATA_POLICIES[policy]):
            type_ = from_refid  # Both say the same.
        elif from_refid is not None:
            self._fail(element.line, f"data-policy {policy!r} contradicts refid {refid!r}; give one of them")
        else:
            type_ = _DATA_POLICIES[policy]
        if scope == "local":
            if not type_.startswith(("LOCAL", "NORMAL")):
                self._fail(element.line, f"scope 'local' contradicts the region's type {type_}; use refid LOCAL")
            return type_ if type_.startswith("LOCAL") else "LOCAL"
        if scope is not None and not type_.startswith(("REPLICATE", "NORMAL")):
            self._fail(element.line, f"scope {scope!r} is for replicated regions, and the region's type is {type_}")
        return type_

    def resource_manager(self, element: _Element, parent: _Element) -> None:
        self._once(RESOURCE_MANAGER, "", element)
        rows = resource_manager()
        self.result.member = {
            rows[name].name: rows[name].read(value, name) for name, value in element.attributes.items()
        }

    def cache(self, element: _Element, parent: _Element) -> None:
        self.result.conflict_resolver = next(iter(element.values.get("gateway-conflict-resolver", ())), None)
        stores = {store.name for store in self.result.disk_stores}
        senders: dict[str, QueueAttributes] = {each.core_id: each for each in self.result.senders}
        senders |= {each.core_id: each for each in self.result.queues}
        for sender in senders.values():
            self._check_disk_store(stores, sender.disk_store_name, sender.kind, sender.id)
        done: list[RegionAttributes] = []
        for region in self.result.regions:
            self._check_disk_store(stores, region.disk_store_name, "region", region.name)
            try:
                for sender_id in region.queue_ids:
                    if sender_id in senders:  # A sender that is made later is accepted. Events skip it until then.
                        validate_attachment(region, senders[sender_id])
                validate_colocation(region, done, senders)
            except PywanError as error:
                raise CacheXmlError(f"{self.result.where('region', region.name)}: <region>: {error}") from error
            done.append(region)

    def _check_disk_store(self, stores: set[str], name: str | None, kind: str, of: str) -> None:
        if self._for_this_member and name not in (None, DEFAULT_STORE, *stores):
            raise CacheXmlError(
                f"{self.result.where(kind, of)}: <{kind}>: disk store {name!r} not found; define it"
                f" with <disk-store name={name!r}/>"
            )

    def _once(self, kind: str, name: str, element: _Element) -> None:
        before = self.result.lines.get((kind, name))
        if before is not None:
            named = f" {name!r}" if name else ""
            self._fail(
                element.line, f"a second <{kind}>{named}; the first is in line {before}, and a member can have one"
            )
        self.result.lines[kind, name] = element.line


def _snake(attributes: Mapping[str, str]) -> dict[str, str]:
    return {key.replace("-", "_"): value for key, value in attributes.items()}


def _inside(element: _Element) -> dict[str, Any]:
    """Returns the attributes of a thing that are elements inside its own element."""
    values = {}
    for row in rows_of(_KIND_OF.get(element.name, element.name)):
        value = element.values.get(row.attribute.element)
        if value is not None and row.attribute.element not in _MORE_ATTRIBUTES:
            values[row.name] = value[0] if row.is_one_class else value
    return values


def _names(kind: str, element: str = "") -> tuple[str, ...]:
    """Returns the attributes that an element of a thing can have: its own element (""), or one inside it."""
    return tuple(row.name.replace("_", "-") for row in rows_of(kind) if row.attribute.element == element)


_KIND_OF = {"region-attributes": "region"}
_MORE_ATTRIBUTES = ("partition-attributes", "subscription-attributes")  # Elements that hold attributes of a region.


@dataclass(frozen=True)
class _Rule:
    """The rule for one element: the method that handles it, and the parents, attributes and text that it may have."""

    make: Callable[[_Reader, _Element, _Element], None]
    parents: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    has_text: bool = False
    refused: tuple[str, ...] = ()  # Attributes that are refused by name, with the reason.


_SCOPES = ("local", "distributed-no-ack", "distributed-ack", "global")
_DATA_POLICIES = {
    "normal": "NORMAL",
    "preloaded": "",
    "replicate": "REPLICATE",
    "partition": "PARTITION",
    "empty": "REPLICATE_PROXY",
    "persistent-replicate": "REPLICATE_PERSISTENT",
    "persistent-partition": "PARTITION_PERSISTENT",
}
_ONE_OF_A_KIND = ("gateway-event-substitution-filter", "gateway-conflict-resolver", "async-event-listener")
_CALLBACKS = (
    "async-event-listener",
    "gateway-event-filter",
    "gateway-event-substitution-filter",
    "gateway-conflict-resolver",
    "cache-listener",
)
_RULES: dict[str, _Rule] = {
    "cache": _Rule(_Reader.cache, (), ("version",)),
    "gateway-sender": _Rule(
        _Reader.thing, ("cache",), _names("gateway-sender"), ("id", "remote-distributed-system-id")
    ),
    "async-event-queue": _Rule(
        _Reader.thing,
        ("cache",),
        _names("async-event-queue"),
        ("id",),
        refused=tuple(name.replace("_", "-") for name in AsyncEventQueueAttributes.refused),
    ),
    "async-event-listener": _Rule(_Reader.reference, ("async-event-queue",)),
    "gateway-event-filter": _Rule(_Reader.reference, ("gateway-sender", "async-event-queue")),
    "gateway-event-substitution-filter": _Rule(_Reader.reference, ("gateway-sender", "async-event-queue")),
    "gateway-conflict-resolver": _Rule(_Reader.reference, ("cache",)),
    RESOURCE_MANAGER: _Rule(_Reader.resource_manager, ("cache",), tuple(resource_manager())),
    "gateway-receiver": _Rule(_Reader.thing, ("cache",), _names("gateway-receiver")),
    "disk-store": _Rule(
        _Reader.thing,
        ("cache",),
        _names("disk-store"),
        ("name",),
        refused=tuple(name.replace("_", "-") for name in DiskStoreAttributes.refused),
    ),
    "disk-dirs": _Rule(_Reader.disk_dirs, ("disk-store",)),
    "disk-dir": _Rule(_Reader.disk_dir, ("disk-dirs",), ("dir-size",), has_text=True),
    "region": _Rule(_Reader.region, ("cache",), ("name", "refid"), ("name",)),
    "region-attributes": _Rule(
        _Reader.region_attributes,
        ("region",),
        ("refid", "data-policy", "scope", *(name for name in _names("region") if name not in ("name", "type"))),
    ),
    **{
        name: _Rule(_Reader.more_attributes, ("region-attributes",), _names("region", name))
        for name in _MORE_ATTRIBUTES
    },
    "cache-listener": _Rule(_Reader.reference, ("region-attributes",)),
    "class-name": _Rule(_Reader.class_name, _CALLBACKS, has_text=True),
    "parameter": _Rule(_Reader.parameter, _CALLBACKS, ("name",), ("name",)),
    "string": _Rule(_Reader.string, ("parameter",), has_text=True),
}


# A cluster configuration as a file

_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<cache xmlns="http://geode.apache.org/schema/cache" version="1.0">
"""


def to_things(configuration: CacheConfiguration) -> list[Thing]:
    """Returns what a file asks for as a cluster configuration holds it: the attributes that are not the default."""
    if configuration.conflict_resolver is not None:
        raise CacheXmlError(
            f"{configuration.where('conflict-resolver', '')}: <gateway-conflict-resolver> is not kept in a cluster"
            " configuration; name it in the cache.xml of each member"
        )
    if (RESOURCE_MANAGER, "") in configuration.lines:
        raise CacheXmlError(
            f"{configuration.where('resource-manager', '')}: <resource-manager> is not kept in a cluster configuration;"
            " give it in the cache.xml of each member, or as an option of start server"
        )
    receivers = [configuration.receiver] if configuration.receiver is not None else []
    things = []
    for kind, those in (
        ("disk-store", configuration.disk_stores),
        ("gateway-sender", configuration.senders),
        ("async-event-queue", configuration.queues),
        ("region", configuration.regions),
        ("gateway-receiver", receivers),
    ):
        for attributes in those:
            plain = to_plain(attributes)
            name = plain.pop("id", None) or plain.pop("name", "")
            needed: dict[str, Any] = {
                key: plain[key]
                for key in ("remote_distributed_system_id", "type", "async_event_listener")
                if key in plain
            }
            usual = to_plain(make_attributes(kind, name, needed))
            given = {key: value for key, value in plain.items() if key in needed or value != usual[key]}
            things.append({"kind": kind, "name": name, "attributes": given})
    return things


def to_xml(things: list[Thing]) -> str:
    """Returns the things of a cluster configuration in Geode's grammar, as `parse` reads it."""
    elements = []
    for thing in sorted(things, key=lambda thing: _SCHEMA_ORDER.index(thing["kind"])):
        name, given = thing["name"], thing["attributes"]
        attributes = make_attributes(thing["kind"], name, given)
        rows = [row for row in rows_of(thing["kind"]) if row.name in given and row.name != naming(type(attributes))]
        elements.append(
            _region_text(name, attributes, rows)
            if isinstance(attributes, RegionAttributes)
            else _thing_text(name, attributes, rows)
        )
    return _HEAD + "".join(elements) + "</cache>\n"


def _attributes_text(attributes: Attributes, rows: Iterable[Row]) -> str:
    """Returns the attributes of an element as text."""
    parts = []
    for row in rows:
        value = getattr(attributes, row.name)
        if value is not None:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            text = text.lower() if isinstance(value, bool) else text
            parts.append(f" {row.name.replace('_', '-')}={quoteattr(text)}")
    return "".join(parts)


def _callback_text(element: str, reference: Any, indent: str) -> str:
    parameters = "".join(
        f"{indent}  <parameter name={quoteattr(name)}><string>{escape(value)}</string></parameter>\n"
        for name, value in reference.parameters.items()
    )
    name = f"{indent}  <class-name>{escape(reference)}</class-name>\n"
    return f"{indent}<{element}>\n{name}{parameters}{indent}</{element}>\n"


def _element(head: str, inside: str, indent: str) -> str:
    name = head.partition(" ")[0]
    return f"{indent}<{head}>\n{inside}{indent}</{name}>\n" if inside else f"{indent}<{head}/>\n"


def _inside_text(attributes: Attributes, rows: Iterable[Row], indent: str) -> str:
    """Returns the elements inside a thing's own element."""
    parts: dict[str, str] = {}
    for row in rows:
        element, value = row.attribute.element, getattr(attributes, row.name)
        if row.attribute.methods:
            references = value if isinstance(value, tuple) else (value,) if value is not None else ()
            parts[element] = "".join(_callback_text(element, reference, indent) for reference in references)
        elif element == "disk-dirs":
            directories = "".join(
                f"{indent} "
                f" <disk-dir{'' if size is None else f' dir-size={quoteattr(str(size))}'}>{escape(path)}</disk-dir>\n"
                for path, size in value
            )
            parts[element] = _element(element, directories, indent) if directories else ""
        elif element:
            listed = _attributes_text(attributes, [other for other in rows if other.attribute.element == element])
            parts[element] = _element(f"{element}{listed}", "", indent) if listed else ""
    return "".join(parts.values())


def _thing_text(name: str, attributes: Attributes, rows: list[Row]) -> str:
    named = naming(type(attributes))
    own = f" {named}={quoteattr(name)}" if named is not None else ""
    plain = _attributes_text(attributes, [row for row in rows if not row.attribute.element])
    return _element(f"{attributes.kind}{own}{plain}", _inside_text(attributes, rows, "    "), "  ")


def _region_text(name: str, attributes: RegionAttributes, rows: list[Row]) -> str:
    inside = _inside_text(attributes, rows, "      ")
    plain = _attributes_text(attributes, [row for row in rows if not row.attribute.element and row.name != "type"])
    if attributes.type == "NORMAL":  # Geode has no shortcut of this name.
        plain = ' data-policy="normal"' + plain
    refid = "" if attributes.type == "NORMAL" else f" refid={quoteattr(attributes.type)}"
    inner = _element(f"region-attributes{plain}", inside, "    ") if plain or inside else ""
    return _element(f"region name={quoteattr(name)}{refid}", inner, "  ")


# The order in Geode's schema.
_SCHEMA_ORDER = ("gateway-sender", "gateway-receiver", "async-event-queue", "disk-store", "region")

"""Owns cache.xml: Geode's elements for senders, receivers, regions and disk stores, into attributes; and a cluster
configuration as such a file.

The document is hostile until read: no DTD, no entities, a size limit. What is not understood is an error that names
the line, never a silence.
"""
from __future__ import annotations

import os
import xml.sax
import xml.sax.handler
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr
from typing import Any, Callable, Mapping

from pywan.config import attributes as config
from pywan.config.attributes import (
    ClassReference, DiskStoreAttributes, ReceiverAttributes, RegionAttributes, SenderAttributes,
    make_disk_store_attributes, make_receiver_attributes, make_region_attributes, make_sender_attributes,
)
from pywan.errors import CacheXmlError, PywanError
from pywan.base.files import FileError, read_regular
from pywan.config.cluster import Thing, make_attributes

MAX_FILE_BYTES = 1024 * 1024


@dataclass
class CacheConfiguration:
    """What a cache.xml asks for, in the order in which it is to be made: disk stores, senders, regions, the receiver
    last, so that what it receives finds its regions."""

    senders: list[SenderAttributes] = field(default_factory=list)
    receiver: ReceiverAttributes | None = None
    regions: list[RegionAttributes] = field(default_factory=list)
    disk_stores: list[DiskStoreAttributes] = field(default_factory=list)
    conflict_resolver: ClassReference | None = None
    source: str = ""
    lines: dict[tuple[str, str], int] = field(default_factory=dict)   # ("region", "data") -> its line in the file.

    def where(self, kind: str, name: str) -> str:
        """`file:line` of a thing, to stand before what is said about it."""
        return f"{self.source}:{self.lines.get((kind, name), 1)}"


def parse(path: str | os.PathLike, *, for_this_member: bool = True) -> CacheConfiguration:
    """The configuration in the file; CacheXmlError `file:line: ...` if there is anything wrong in it.

    A file that is not `for_this_member`, but for those of a site, may name classes and disk stores that only they have.
    """
    name = os.fspath(path)
    try:
        data = read_regular(name, MAX_FILE_BYTES).data
    except FileError as error:
        raise CacheXmlError(f"{name}:1: the file {error}") from None
    return parse_bytes(data, name, for_this_member=for_this_member)


def parse_bytes(data: bytes, source: str = "cache.xml", *, for_this_member: bool = True) -> CacheConfiguration:
    from defusedxml import DefusedXmlException
    from defusedxml import sax as safe_sax

    if len(data) > MAX_FILE_BYTES:
        raise CacheXmlError(f"{source}:1: the file has more than {MAX_FILE_BYTES} bytes, the most that is read")
    reader = _Reader(source, for_this_member)
    parser = safe_sax.make_parser()
    parser.setContentHandler(reader)
    reader.setDocumentLocator(parser)   # feed(), unlike parse(), does not do it.
    parser.setErrorHandler(xml.sax.handler.ErrorHandler())
    # The parser answers a DTD, an entity or an external reference with an exception.
    parser.forbid_dtd = parser.forbid_entities = parser.forbid_external = True
    try:
        parser.feed(data)
        parser.close()
    except xml.sax.SAXParseException as error:
        raise CacheXmlError(f"{source}:{error.getLineNumber() or 1}: not well-formed XML: {error.getMessage()}") from None
    except DefusedXmlException as error:
        what = {"DTDForbidden": "a DTD (<!DOCTYPE>)", "EntitiesForbidden": "an entity declaration"}.get(type(error).__name__, "an external reference")
        raise CacheXmlError(f"{source}:{parser.getLineNumber() or 1}: {what} is not allowed here; remove it (a schema may be named by xsi:schemaLocation)") from None
    except (UnicodeError, LookupError, ValueError) as error:
        if isinstance(error, PywanError):
            raise
        raise CacheXmlError(f"{source}:1: the file cannot be decoded: {error}") from None
    return reader.result


@dataclass
class _Element:
    """One open element: its attributes, and what its children have left in it."""

    name: str
    line: int
    attributes: dict[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    text: str = ""


class _Reader(xml.sax.handler.ContentHandler):
    """Walks the elements; each has one rule that says which parents, attributes and text it may have, and what it makes."""

    def __init__(self, source: str, for_this_member: bool) -> None:
        super().__init__()
        self._for_this_member = for_this_member
        self.result = CacheConfiguration(source=source)
        self._source = source
        self._stack: list[_Element] = []
        self._locator: Any = None   # Has getLineNumber().

    def setDocumentLocator(self, locator: Any) -> None:
        self._locator = locator

    def startElement(self, name: str, attrs: Any) -> None:
        name = name.rpartition(":")[2]
        element = _Element(name, self._line(), {})
        parent = self._stack[-1] if self._stack else None
        if parent is None and name != "cache":
            self._fail(element.line, f"the root element is <{name}>; a cache.xml has <cache> around everything")
        rule = _RULES.get(name)
        if rule is None or (parent is not None and parent.name not in rule.parents) or (parent is None and rule.parents):
            allowed = sorted(n for n, r in _RULES.items() if parent is not None and parent.name in r.parents)
            inside = f" inside <{parent.name}>" if parent else ""
            known = f"there can be {', '.join(f'<{n}>' for n in allowed)}" if allowed else "nothing can be there"
            self._fail(element.line, f"element <{name}> is not known{inside}; {known}")
        for key, value in attrs.items():
            if key == "xmlns" or key.startswith(("xmlns:", "xsi:", "xml:")):
                continue
            if key not in rule.attributes and key not in rule.refused:
                self._fail(element.line, f"attribute {key!r} of <{name}> is not known; there can be {', '.join(rule.attributes) or 'none'}")
            element.attributes[key] = value.strip()
        for key in rule.required:
            if not element.attributes.get(key):
                self._fail(element.line, f"<{name}> needs the attribute {key!r}")
        self._stack.append(element)

    def characters(self, content: str) -> None:
        element = self._stack[-1]
        if not _RULES[element.name].has_text and content.strip():
            self._fail(self._line(), f"text {content.strip()[:40]!r} inside <{element.name}>, where only elements can be")
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

    def _fail(self, line: int, message: str) -> None:
        raise CacheXmlError(f"{self._source}:{line}: {message}")

    # One method an element: what it leaves in its parent or in the result.

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
            self._fail(element.line, f"<parameter name={element.attributes['name']!r}> needs <string>value</string> inside")
        parent.values.setdefault("parameters", {})[element.attributes["name"]] = element.values["string"].strip()

    def reference(self, element: _Element, parent: _Element) -> None:
        """A callback class: by <class-name> inside, with <parameter>s for its constructor."""
        if "class" not in element.values:
            self._fail(element.line, f"<{element.name}> needs <class-name>package.module:Class</class-name> inside")
        made, = config.to_class_references(ClassReference(element.values["class"], element.values.get("parameters")), "class-name") or (None,)
        if self._for_this_member:
            config.import_class(str(made), "class-name")
        found = parent.values.setdefault(element.name, [])
        if found and element.name in ("gateway-event-substitution-filter", "gateway-conflict-resolver"):
            self._fail(element.line, f"a second <{element.name}>; there can be one")
        found.append(made)
        if element.name == "gateway-conflict-resolver":
            self.result.lines["conflict-resolver", ""] = element.line

    def sender(self, element: _Element, parent: _Element) -> None:
        values = _snake(element.attributes)
        values["gateway_event_filters"] = element.values.get("gateway-event-filter", ())
        values["gateway_event_substitution_filter"] = next(iter(element.values.get("gateway-event-substitution-filter", ())), None)
        made = make_sender_attributes(**values)
        self._once("gateway-sender", made.id, element)
        self.result.senders.append(made)

    def receiver(self, element: _Element, parent: _Element) -> None:
        self._once("gateway-receiver", "", element)
        self.result.receiver = make_receiver_attributes(**_snake(element.attributes))

    def disk_dir(self, element: _Element, parent: _Element) -> None:
        size = element.attributes.get("dir-size")
        number = config.to_int(size, "dir-size", 1) if size is not None else None
        parent.values.setdefault("dirs", []).append((element.text.strip(), number))

    def disk_dirs(self, element: _Element, parent: _Element) -> None:
        parent.values["dirs"] = element.values.get("dirs", [])

    def disk_store(self, element: _Element, parent: _Element) -> None:
        made = make_disk_store_attributes(**_snake(element.attributes), directories=element.values.get("dirs", ()))
        self._once("disk-store", made.name, element)
        self.result.disk_stores.append(made)

    def partition_attributes(self, element: _Element, parent: _Element) -> None:
        parent.values["partition"] = _snake(element.attributes)

    def region_attributes(self, element: _Element, parent: _Element) -> None:
        if "region" in parent.values:
            self._fail(element.line, "a second <region-attributes> in one region")
        parent.values["region"] = element

    def region(self, element: _Element, parent: _Element) -> None:
        inner: _Element | None = element.values.get("region")
        attributes = dict(inner.attributes) if inner else {}
        refid = attributes.pop("refid", None)
        outer_refid = element.attributes.get("refid")
        if refid and outer_refid and refid != outer_refid:
            self._fail(inner.line, f"refid {refid!r} of <region-attributes> is not the region's own, {outer_refid!r}; give one")
        policy, scope = attributes.pop("data-policy", None), attributes.pop("scope", None)
        partition = inner.values.get("partition", {}) if inner else {}
        type_ = self._region_type(element, outer_refid or refid, policy, scope, bool(partition))
        made = make_region_attributes(
            element.attributes["name"], type=type_, **_snake(attributes), **partition,
            cache_listeners=inner.values.get("cache-listener", ()) if inner else (),
        )
        self._once("region", made.name, element)
        self.result.regions.append(made)

    def _region_type(self, element: _Element, refid: str | None, policy: str | None, scope: str | None, partitioned: bool) -> str:
        """The shortcut that stands for refid, data-policy and scope together."""
        if policy is not None:
            policy = config.to_word(policy, "data-policy", _DATA_POLICIES)
        if policy == "preloaded":
            self._fail(element.line, "data-policy 'preloaded' is not in this version: there are no other members from which"
                                     " entries could be loaded; take normal or replicate")
        if scope is not None:
            scope = config.to_word(scope, "scope", _SCOPES)
        if scope == "global":
            self._fail(element.line, "scope 'global' is not in this version: there are no locks that members share; take"
                                     " distributed-ack")
        from_refid = config.to_region_type(refid, "refid") if refid else None
        if policy is None:
            type_ = from_refid or ("PARTITION" if partitioned else "NORMAL")
        elif from_refid is not None and from_refid.startswith(_DATA_POLICIES[policy]):
            type_ = from_refid   # They say the same.
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

    def cache(self, element: _Element, parent: _Element) -> None:
        self.result.conflict_resolver = next(iter(element.values.get("gateway-conflict-resolver", ())), None)
        stores = {store.name for store in self.result.disk_stores}
        senders = {sender.id: sender for sender in self.result.senders}
        for sender in self.result.senders:
            self._check_disk_store(stores, sender.disk_store_name, "gateway-sender", sender.id)
        done: list[RegionAttributes] = []
        for region in self.result.regions:
            self._check_disk_store(stores, region.disk_store_name, "region", region.name)
            try:
                for sender_id in region.gateway_sender_ids:
                    if sender_id in senders:   # One that is made later is accepted: events skip it until then.
                        config.validate_attachment(region, senders[sender_id])
                config.validate_colocation(region, done, senders)
            except PywanError as error:
                raise CacheXmlError(f"{self.result.where('region', region.name)}: <region>: {error}") from error
            done.append(region)

    def _check_disk_store(self, stores: set[str], name: str | None, kind: str, of: str) -> None:
        if self._for_this_member and name not in (None, config.DEFAULT_STORE, *stores):
            raise CacheXmlError(f"{self.result.where(kind, of)}: <{kind}>: disk store {name!r} not found; define it with <disk-store name={name!r}/>")

    def _once(self, kind: str, name: str, element: _Element) -> None:
        before = self.result.lines.get((kind, name))
        if before is not None:
            named = f" {name!r}" if name else ""
            self._fail(element.line, f"a second <{kind}>{named}; the first is in line {before}, and a member can have one")
        self.result.lines[kind, name] = element.line


def _snake(attributes: Mapping[str, str]) -> dict[str, str]:
    return {key.replace("-", "_"): value for key, value in attributes.items()}


def _kebab(cls: type, *without: str) -> tuple[str, ...]:
    return tuple(name.replace("_", "-") for name in config.attribute_names(cls) if name not in without)


@dataclass(frozen=True)
class _Rule:
    make: Callable[[_Reader, _Element, _Element], None]
    parents: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    has_text: bool = False
    refused: tuple[str, ...] = ()       # Attributes that config refuses by name, with the reason.


_SCOPES = ("local", "distributed-no-ack", "distributed-ack", "global")
_DATA_POLICIES = {
    "normal": "NORMAL", "preloaded": "", "replicate": "REPLICATE", "partition": "PARTITION", "empty": "REPLICATE_PROXY",
    "persistent-replicate": "REPLICATE_PERSISTENT", "persistent-partition": "PARTITION_PERSISTENT",
}
_CALLBACKS = ("gateway-event-filter", "gateway-event-substitution-filter", "gateway-conflict-resolver", "cache-listener")
_RULES: dict[str, _Rule] = {
    "cache": _Rule(_Reader.cache, (), ("version",)),
    "gateway-sender": _Rule(
        _Reader.sender, ("cache",), _kebab(SenderAttributes, "gateway_event_filters", "gateway_event_substitution_filter"),
        ("id", "remote-distributed-system-id"),
    ),
    "gateway-event-filter": _Rule(_Reader.reference, ("gateway-sender",)),
    "gateway-event-substitution-filter": _Rule(_Reader.reference, ("gateway-sender",)),
    "gateway-conflict-resolver": _Rule(_Reader.reference, ("cache",)),
    "gateway-receiver": _Rule(_Reader.receiver, ("cache",), _kebab(ReceiverAttributes)),
    "disk-store": _Rule(
        _Reader.disk_store, ("cache",), _kebab(DiskStoreAttributes, "directories"), ("name",),
        refused=tuple(name.replace("_", "-") for name in config.REFUSED_ATTRIBUTES[DiskStoreAttributes]),
    ),
    "disk-dirs": _Rule(_Reader.disk_dirs, ("disk-store",)),
    "disk-dir": _Rule(_Reader.disk_dir, ("disk-dirs",), ("dir-size",), has_text=True),
    "region": _Rule(_Reader.region, ("cache",), ("name", "refid"), ("name",)),
    "region-attributes": _Rule(
        _Reader.region_attributes, ("region",),
        ("refid", "data-policy", "scope", "gateway-sender-ids", "async-event-queue-ids", "disk-store-name", "disk-synchronous"),
    ),
    "partition-attributes": _Rule(
        _Reader.partition_attributes, ("region-attributes",), ("redundant-copies", "total-num-buckets", "colocated-with"),
    ),
    "cache-listener": _Rule(_Reader.reference, ("region-attributes",)),
    "class-name": _Rule(_Reader.class_name, _CALLBACKS, has_text=True),
    "parameter": _Rule(_Reader.parameter, _CALLBACKS, ("name",), ("name",)),
    "string": _Rule(_Reader.string, ("parameter",), has_text=True),
}


# A cluster configuration as a file.

_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<cache xmlns="http://geode.apache.org/schema/cache" version="1.0">
"""


def to_things(configuration: CacheConfiguration) -> list[Thing]:
    """What a file asks for as a cluster configuration holds it: the attributes that are not the default."""
    if configuration.conflict_resolver is not None:
        raise CacheXmlError(f"{configuration.where('conflict-resolver', '')}: <gateway-conflict-resolver> is not kept in a cluster"
                            " configuration; name it in the cache.xml of each member")
    receivers = [configuration.receiver] if configuration.receiver is not None else []
    things = []
    for kind, those in (("disk-store", configuration.disk_stores), ("gateway-sender", configuration.senders),
                        ("region", configuration.regions), ("gateway-receiver", receivers)):
        for attributes in those:
            plain = config.to_plain(attributes)
            name = plain.pop("id", None) or plain.pop("name", "")
            needed = {key: plain[key] for key in ("remote_distributed_system_id", "type") if key in plain}
            usual = config.to_plain(make_attributes(kind, name, needed))
            given = {key: value for key, value in plain.items() if key in needed or value != usual[key]}
            things.append({"kind": kind, "name": name, "attributes": given})
    return things


def to_xml(things: list[Thing]) -> str:
    """The things of a cluster configuration in Geode's grammar, as `parse` reads it."""
    elements = []
    for kind, to_text in _ELEMENTS.items():
        for thing in things:
            if thing["kind"] == kind:
                attributes = make_attributes(kind, thing["name"], thing["attributes"])
                elements.append(to_text(thing["name"], attributes, thing["attributes"]))
    return _HEAD + "".join(elements) + "</cache>\n"


def _attributes_text(attributes: Any, names: Any) -> str:
    """Attributes that the thing was given, and that an element can have."""
    found = []
    for name in names:
        value = getattr(attributes, name)
        if value is not None:
            text = ",".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)
            found.append(f" {name.replace('_', '-')}={quoteattr(text)}")
    return "".join(found)


def _callback_text(element: str, reference: Any, indent: str) -> str:
    parameters = "".join(f"{indent}  <parameter name={quoteattr(name)}><string>{escape(value)}</string></parameter>\n"
                         for name, value in reference.parameters.items())
    return f"{indent}<{element}>\n{indent}  <class-name>{escape(reference)}</class-name>\n{parameters}{indent}</{element}>\n"


def _element(head: str, inside: str, indent: str) -> str:
    name = head.partition(" ")[0]
    return f"{indent}<{head}>\n{inside}{indent}</{name}>\n" if inside else f"{indent}<{head}/>\n"


def _sender_text(name: str, attributes: SenderAttributes, given: Mapping[str, Any]) -> str:
    plain = [key for key in config.attribute_names(SenderAttributes)
             if key == "remote_distributed_system_id" or key in given and key not in config.CALLBACK_METHODS]
    inside = "".join(_callback_text("gateway-event-filter", reference, "    ") for reference in attributes.gateway_event_filters)
    if attributes.gateway_event_substitution_filter is not None:
        inside += _callback_text("gateway-event-substitution-filter", attributes.gateway_event_substitution_filter, "    ")
    return _element(f"gateway-sender id={quoteattr(name)}{_attributes_text(attributes, plain)}", inside, "  ")


def _receiver_text(name: str, attributes: ReceiverAttributes, given: Mapping[str, Any]) -> str:
    return _element(f"gateway-receiver{_attributes_text(attributes, given)}", "", "  ")


def _disk_store_text(name: str, attributes: DiskStoreAttributes, given: Mapping[str, Any]) -> str:
    inside = "".join(
        f"      <disk-dir{'' if size is None else f' dir-size={quoteattr(str(size))}'}>{escape(path)}</disk-dir>\n"
        for path, size in attributes.directories)
    plain = [key for key in given if key != "directories"]
    directories = _element("disk-dirs", inside, "    ") if inside else ""
    return _element(f"disk-store name={quoteattr(name)}{_attributes_text(attributes, plain)}", directories, "  ")


_OF_PARTITIONS = ("total_num_buckets", "redundant_copies", "colocated_with")


def _region_text(name: str, attributes: RegionAttributes, given: Mapping[str, Any]) -> str:
    partitions = _attributes_text(attributes, [key for key in _OF_PARTITIONS if key in given])
    inside = _element(f"partition-attributes{partitions}", "", "      ") if partitions else ""
    inside += "".join(_callback_text("cache-listener", reference, "      ") for reference in attributes.cache_listeners)
    elsewhere = ("type", *_OF_PARTITIONS, *config.CALLBACK_METHODS)
    plain = _attributes_text(attributes, [key for key in given if key not in elsewhere])
    if attributes.type == "NORMAL":     # Geode has no shortcut of this name.
        plain = ' data-policy="normal"' + plain
    refid = "" if attributes.type == "NORMAL" else f" refid={quoteattr(attributes.type)}"
    inner = _element(f"region-attributes{plain}", inside, "    ") if plain or inside else ""
    return _element(f"region name={quoteattr(name)}{refid}", inner, "  ")


# In the order of Geode's schema.
_ELEMENTS: dict[str, Callable[[str, Any, Mapping[str, Any]], str]] = {
    "gateway-sender": _sender_text, "gateway-receiver": _receiver_text, "disk-store": _disk_store_text, "region": _region_text,
}

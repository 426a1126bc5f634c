"""Owns the table of commands: their names, options and what each does. A command asks members through the session."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pywan
from pywan.base.addresses import is_loopback, parse_locators, resolve
from pywan.base.amounts import duration_text, moment_text
from pywan.base.files import FileError, given_path, read_regular
from pywan.cli import grammar
from pywan.cli.grammar import FROM_ENVIRONMENT, Command, GrammarError
from pywan.cli.layout import Sheet, Table, wrapped
from pywan.cli.output import Result, readable, value_text
from pywan.cli.properties import Properties, gather
from pywan.cli.service import tell_ready
from pywan.cli.session import DEFAULT_LOCATOR, MEMBER_TIMEOUT_S, Session
from pywan.config.options import Option, Shown, commands_of
from pywan.config.values import MAX_WAIT_S, to_int, to_wait_time, to_word
from pywan.errors import ConfigurationError, ConnectivityError, NoLocatorError, NotFoundError, PywanError
from pywan.gateway.status import NOT_RUNNING
from pywan.member import process
from pywan.member.management import IF_NOT_EXISTS, SENDER_ID, ManagementService
from pywan.stats import volatile_text

Values = dict[str, Any]
MAX_SCRIPT_BYTES = 1024 * 1024
REPAIR_TIMEOUT_S = 86400.0  # The member tells how far it is, and Ctrl-C ends the command.
SHUTDOWN_LOOK_S = 0.2  # The time between two looks at what members still have.

MEMBER = Option("member", "only this member (several with commas)", field="member")
MEMBERS = Option("members", "the same", field="member", hidden=True)
TARGETS = (MEMBER, MEMBERS)


def _target(values: Values) -> str | None:
    target: str | None = values.pop("member", None)
    return target


# --- commands that every member carries out ---


def _on_members(op: str) -> Callable[[Session, Values], Result]:
    """A handler that asks every member to do `op` and shows a row for each. A member that fails makes the command fail.
    The other members go on."""

    def handle(session: Session, values: Values) -> Result:
        return _rows(op, session.ask_members(op, values, _target(values)))

    return handle


def _rows(op: str, replies: list[Values]) -> Result:
    """The result with a row for each member that did it. A member that failed has an error, and no row as well."""
    rows = [(reply["member"], "OK", reply.get("status", "")) for reply in replies if reply["ok"]]
    result = Result(data={"members": replies}, tables=[Table(("Member", "Status", "Message"), rows)] if rows else [])
    result.errors += _errors(replies, f"{op} on ")
    return result


def _errors(replies: list[Values], begin: str = "") -> list[str]:
    """The errors of the members that failed, each with the member's name. What all members of a site say, but for their
    names, is said once."""
    said: dict[str, list[Values]] = {}
    for reply in replies:
        if not reply["ok"]:
            name = rf"(?<![\w.-]){re.escape(reply['member'])}(?![\w-])"  # A member may be called "s".
            said.setdefault(re.sub(name, "\0", reply["error"]), []).append(reply)
    lines = []
    for same in said.values():
        first, *others = same
        everywhere = len(same) == len(replies)
        also = f"all {len(same)} members say this" if everywhere else f"so do {', '.join(r['member'] for r in others)}"
        lines.append(f"{begin}{first['member']}: {first['error']}" + (f" ({also})" if others else ""))
    return lines


def _change(op: str, action: str) -> Callable[[Session, Values], Result]:
    """A handler like that of `_on_members`, for a command that changes what the site wants its members to have.
    `action` (put, alter, remove) says what it does with the thing in the cluster configuration.

    The site wants a thing that at least one member has: the thing must come back when that member is restarted. So the
    handler puts or alters it there if at least one member did it, and removes it if no member has it any more. A
    command that changed nothing on any member changes nothing there.
    """
    kind = op.partition(" ")[2]

    def handle(session: Session, values: Values) -> Result:
        target = _target(values)
        replies = session.ask_members(op, values, target)
        name = str(values.get("id") or values.get("name") or "").lstrip("/")
        changed = [reply["member"] for reply in replies if reply["ok"] and reply.get("changed")]
        notes, problems = [], []
        if target is not None:
            # A change for some members is not for those that join later.
            if changed:
                notes.append(
                    f"this holds for {', '.join(changed)} until restarted: a change with --member is not kept in the"
                    " cluster configuration"
                )
        elif action == "remove" or changed:
            try:
                notes += _keep(session, action, kind, name, values, replies)
            except PywanError as error:
                problems.append(
                    f"{op}: done, but the cluster configuration, by which members start, does not hold it: {error}."
                    " Before a member is restarted, bring it there with `export cluster-configuration` and"
                    " `import cluster-configuration --action=STAGE`"
                )
        result = _rows(op, replies)
        result.notes += notes
        result.errors += problems
        return result

    return handle


_ABOUT_THE_COMMAND = ("id", "name", "if_exists", "if_not_exists")


def _keep(session: Session, action: str, kind: str, name: str, values: Values, replies: list[Values]) -> list[str]:
    """Brings a change into the cluster configuration, and returns notes about it. A `remove` that a member refused
    because it has no such thing counts as done when the thing was removed from the cluster configuration."""
    absent = [
        reply for reply in replies if not reply["ok"] and reply["kind"] in ("NotFoundError", "RegionNotFoundError")
    ]
    if action == "remove":
        others = [reply["member"] for reply in replies if not reply["ok"] and reply not in absent]
        if others:
            return [f"{kind} {name} stays in the cluster configuration, since {', '.join(others)} may still have it"]
        change = session.change_configuration(action="remove", kind=kind, name=name)
        for reply in absent if change["changed"] else ():
            reply.update(ok=True, status=f"{kind} {name} was not there; it was removed from the cluster configuration")
            del reply["error"], reply["kind"]
        _check_saved(change)
        return []
    attributes = {key: value for key, value in values.items() if key not in _ABOUT_THE_COMMAND}
    change = session.change_configuration(action=action, kind=kind, name=name, attributes=attributes)
    _check_saved(change)
    if change["is_there"]:
        return []
    return [
        f"{kind} {name} is not in the cluster configuration, so this holds until the members are restarted; change it"
        " in their cache.xml too"
    ]


def _check_saved(reply: Values) -> None:
    if reply["problem"]:
        raise PywanError(f"{reply['problem']} (the locator has it in memory, and tries again with the next change)")


def _shown(op: str, shown: Shown) -> Callable[[Session, Values], Result]:
    """A handler that asks every member, and shows the answers as the command's `Shown` says."""

    def handle(session: Session, values: Values) -> Result:
        replies = session.ask_members(op, values, _target(values))
        result = Result(
            data={"members": replies},
            errors=_errors(replies),
        )
        good = [reply for reply in replies if reply["ok"]]
        if shown.fault is not None:
            result.errors += [f"{reply['member']}: {fault}" for reply in good if (fault := shown.fault(reply))]
        if shown.line is not None:
            result.lines = [f"{reply['member']}: {shown.line(reply)}" for reply in good]
            return result
        rows = [{"member": reply["member"], **item} for reply in good for item in _items(shown, reply)]
        columns = shown.columns or {key.replace("_", " ").capitalize(): key for row in rows for key in row}
        cells = [[row.get(what) if isinstance(what, str) else what(row) for what in columns.values()] for row in rows]
        if shown.columns:
            cells.sort(key=lambda row: [str(cell) for cell in row[:2]])
        if cells:
            result.tables.append(Table(tuple(columns), cells))
        elif result.ok and shown.none:
            result.lines.append(shown.none)
        return result

    return handle


def _items(shown: Shown, reply: Values) -> list[Values]:
    if callable(shown.items):
        return shown.items(reply)
    return reply[shown.items] if shown.items else [reply]


def list_gateways(session: Session, values: Values) -> Result:
    senders_only = values.pop("senders_only", "false").lower() == "true"
    receivers_only = values.pop("receivers_only", "false").lower() == "true"
    if senders_only and receivers_only:
        raise GrammarError("list gateways: --senders-only and --receivers-only exclude each other", "list gateways")
    replies = session.ask_members("list gateways", {}, _target(values))
    result = Result(errors=_errors(replies))
    senders = [{**view, "member": reply["member"]} for reply in replies if reply["ok"] for view in reply["senders"]]
    receivers = [{**view, "member": reply["member"]} for reply in replies if reply["ok"] for view in reply["receivers"]]
    senders.sort(key=lambda view: (view["id"], view["member"]))
    if not receivers_only:
        result.data["senders"] = senders
        rows = [
            (
                v["id"],
                v["member"],
                v["remote_distributed_system_id"],
                v["type"],
                v["status"],
                v["queue_size"],
                v["receiver_location"],
            )
            for v in senders
        ]
        if rows:
            result.tables.append(
                Table(
                    (
                        "GatewaySender Id",
                        "Member",
                        "Remote Cluster Id",
                        "Type",
                        "Status",
                        "Queued Events",
                        "Receiver Location",
                    ),
                    rows,
                    "Gateway senders",
                    {
                        "GatewaySender Id": "Sender",
                        "Remote Cluster Id": "Remote",
                        "Queued Events": "Queued",
                        "Receiver Location": "Receiver",
                    },
                )
            )
    if not senders_only:
        result.data["receivers"] = receivers
        # A sender has a connection for each of its dispatchers. The table names each sender once.
        found = [
            (
                v["member"],
                v["port"],
                v["sender_count"],
                list(dict.fromkeys(name.split(" (")[0] for name in v["connected_senders"])),
            )
            for v in receivers
        ]
        if found:
            result.tables.append(
                Table(("Member", "Port", "Sender Count", "Senders Connected"), found, "Gateway receivers")
            )
    if not result.tables and result.ok:
        result.lines.append("GatewaySenders or GatewayReceivers are not available in the site")
    return result


def start_gateway_sender(session: Session, values: Values) -> Result:
    if values.get("clean_queues"):
        # Otherwise the queue of one member would send again what the other members dropped.
        if values.get("member"):
            raise ConfigurationError(
                "start gateway-sender: --clean-queues is for all members at once; leave --member out"
            )
        running = [
            reply["member"]
            for reply in session.ask_members("status gateway-sender", {"id": values["id"]})
            if reply["ok"] and reply["status"] != NOT_RUNNING
        ]
        if running:
            raise ConfigurationError(
                f"start gateway-sender: --clean-queues while sender {values['id']!r} runs on {', '.join(running)};"
                " stop it everywhere first"
            )
    return _on_members("start gateway-sender")(session, values)


def repair_clock(session: Session, values: Values) -> Result:
    target = _target(values)
    replies = session.ask_members(
        "repair clock",
        values,
        target,
        timeout=REPAIR_TIMEOUT_S,
        progress=lambda told: session.output.note(
            f"{told['member']}: {told['total']:,} stamped anew so far, round {told['rounds']}"
        ),
    )
    result = Result(
        data={"members": replies},
        errors=_errors(replies),
    )
    rows: list[tuple[Any, ...]] = []
    for reply in replies:
        if not reply["ok"]:
            continue
        done = "would be stamped anew" if reply["dry_run"] else "were stamped anew"
        moment = moment_text(reply["now_ms"])
        result.lines.append(
            f"{reply['member']}: {reply['total']:,} {done}; its stamps were"
            f" {duration_text(reply['ahead_ms'] / 1000)} ahead of its"
            f" clock, which says {moment}"
        )
        rows += [
            (reply["member"], f"region {name}", c["entries"], c["tombstones"], "", "")
            for name, c in sorted(reply["regions"].items())
        ]
        rows += [
            (reply["member"], f"gateway sender {id}", "", "", c["queued"], c["parked"])
            for id, c in sorted(reply["senders"].items())
        ]
        if reply["left"]:
            result.errors.append(
                f"{reply['member']}: {reply['left']:,} events are on their way, and their stamps are ahead still;"
                " see `status gateway-sender`, and repeat it"
            )
    if rows:
        result.tables.append(
            Table(("Member", "Of", "Entries", "Destroyed Keys", "Queued Events", "Parked Events"), rows)
        )
    return result


# --- regions and their data ---


def describe_region(session: Session, values: Values) -> Result:
    replies = session.ask_members("describe region", values, _target(values))
    good = [reply for reply in replies if reply["ok"]]
    if not good:
        return Result(data={"members": replies}, errors=[reply["error"] for reply in replies])
    tables: list[Table | Sheet] = []
    for reply in good:
        given = {"type": reply["type"], "gateway-sender-ids": reply["gateway_sender_ids"], **reply["attributes"]}
        pairs = [("size", reply["size"]), *given.items(), *sorted(reply["stats"].items())]
        tables.append(Sheet(f"Region {reply['name']} on {reply['member']}", readable(pairs)))
    return Result(data={"members": replies}, tables=tables)


def _typed(text: str, type_: str, what: str) -> Any:
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


def _key(values: Values) -> Any:
    return _typed(values["key"], values.pop("key_type", "str"), "--key")


def _holder(session: Session, region: str) -> dict[str, Any]:
    """A member that has the region."""
    members = session.members()
    name = region.lstrip("/")
    for member in members:
        reply = session.ask_member(member, "list regions", {})
        if reply["ok"] and any(view["name"] == name for view in reply["regions"]):
            return member
    raise NotFoundError(
        f"region {name!r} is on no member of the site of {session.locator}; `list regions` shows what there is"
    )


def _ask_holder(session: Session, op: str, values: Values) -> Values:
    reply = session.ask_member(_holder(session, values["region"]), op, values)
    if not reply["ok"]:
        raise PywanError(reply["error"])
    return reply


def get(session: Session, values: Values) -> Result:
    reply = _ask_holder(session, "get", {"region": values["region"], "key": _key(values)})
    data = {
        "key": values["key"],
        "found": reply["found"],
        "value": reply["value"],
        "value_type": reply["value_type"],
        "member": reply["member"],
    }
    if not reply["found"]:
        return Result(data=data, errors=[f"key {values['key']!r} is not in region {values['region']}"])
    return Result(data=data, lines=[value_text(reply["value"])])


def put(session: Session, values: Values) -> Result:
    value = _typed(values["value"], values.pop("value_type", "str"), "--value")
    fields = {"region": values["region"], "key": _key(values), "value": value}
    if "if_not_exists" in values:
        fields["if_not_exists"] = values["if_not_exists"]
    reply = _ask_holder(session, "put", fields)
    return Result(
        data={"key": values["key"], "done": reply["done"], "member": reply["member"]},
        lines=[reply.get("status") or "done"],
    )


def remove(session: Session, values: Values) -> Result:
    everything = values.get("all", "false").lower() == "true"
    if everything == ("key" in values):
        raise GrammarError("remove: give either --key or --all", "remove")
    fields = {"region": values["region"], **({"all": True} if everything else {"key": _key(values)})}
    reply = _ask_holder(session, "remove", fields)
    result = Result(data={"count": reply["count"], "member": reply["member"]})
    if reply["done"]:
        result.lines.append(f"{reply['count']} removed")
    else:
        result.errors.append(f"key {values['key']!r} is not in region {values['region']}")
    return result


def query_size(session: Session, values: Values) -> Result:
    region = values.get("region")
    if "query" in values:
        match = re.fullmatch(r"\s*select\s+count\(\*\)\s+from\s+/?([\w.\-]+)\s*;?\s*", values["query"], re.IGNORECASE)
        if not match:
            raise ConfigurationError(f"query {values['query']!r}: only `select count(*) from /region` is understood")  # noqa: S608
        region = match[1]
    if not region:
        raise GrammarError("query size: --region is required", "query size")
    reply = _ask_holder(session, "query size", {"region": region})
    return Result(
        data={"region": reply["region"], "size": reply["size"], "member": reply["member"]}, lines=[str(reply["size"])]
    )


# --- processes ---

START_OPTIONS = (
    Option("name", "the member's name", required=True),
    Option("dir", "where its folder lies (the current directory)"),
    Option("locators", "the site's locators: host[port], several with commas"),
    Option("bind-address", "where it listens (127.0.0.1)"),
    Option("hostname-for-clients", "the name told to others"),
    Option("properties-file", "a file of NAME=VALUE lines"),
    Option("J", "-Dgemfire.NAME=VALUE sets the property NAME", many=True, field="java"),
    Option("log-level", "info, warning, fine ...", words=tuple(process.LOG_LEVELS)),
    Option("classpath", "directories from which filter classes are imported"),
    Option("foreground", "do not detach; the log goes to standard error", flag=True),
    Option("timeout", "seconds until it must be ready (60)"),
)


def _properties(session: Session, values: Values) -> Properties:
    """The properties beside the options. It takes the options that name properties out of `values`. It also takes out
    each option of the environment whose property the command line gives (`--J`)."""
    variables: dict[str, str] = values.pop(FROM_ENVIRONMENT, {})
    java = values.pop("java", ())
    files = [given_path(values.get("dir") or "."), Path(".")]
    stronger, weaker = ((), java) if "java" in variables else (java, ())
    properties = gather(stronger, values.pop("properties_file", None), files, weaker)
    for name in properties.of_command_line:
        key = name.replace("-", "_")
        if key in variables:
            del values[key], variables[key]
    if variables:
        note = f"from the environment: {', '.join(sorted(variables.values()))}"
        session.output.note(note)  # At once, because a wrong one makes an error, and then there is no result.
        if session.output.as_json:
            properties.notes.append(note)
    return properties


def _number(text: str | None, what: str) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{what}: {text!r} is not a whole number") from None


def _timeout(values: Values) -> float | None:
    return float(to_int(values["timeout"], "--timeout", 1, MAX_WAIT_S)) if "timeout" in values else None


def _start(session: Session, kind: str, values: Values, options: Values, properties: Properties) -> Result:
    name, directory = values["name"], values.get("dir")
    options["log_level"] = values.get("log_level") or properties.get("log-level")
    # A member has another current directory, so it gets absolute paths.
    classpath = values.get("classpath")
    options["classpath"] = (
        ":".join(str(given_path(part).absolute()) for part in classpath.split(":") if part) if classpath else None
    )
    options = {key: value for key, value in options.items() if value is not None}
    timeout = _timeout(values) or process.START_TIMEOUT_S
    if values.get("foreground", "false").lower() == "true":
        process.run_foreground(
            kind,
            name,
            options,
            directory=directory,
            path=[str(Path.cwd())],
            ready=lambda report: _say_ready(session, kind, report),
        )
        return Result(data={"name": name}, notes=properties.notes)
    found = process.start(kind, name, options, directory=directory, timeout=timeout)
    where = f"{found['host']}[{found['port']}], pid {found['pid']}; log {found['log_file']}"
    line = f"{kind.capitalize()} {name} is online on {where}"
    notes = [*properties.notes, *(f"cluster configuration: {problem}" for problem in found.get("problems", ()))]
    if (
        options.get("remote_locators")
        and not options.get("bind_address")
        and not options.get("hostname_for_clients")
        and is_loopback(found["host"])
    ):
        own = next((a for a in parse_locators(options.get("locators") or "") if a.port == found["port"]), None)
        if own is not None and _is_outside(own.host):
            notes.append(
                f"locator {name} listens on {found['host']} only, so no other machine reaches {own};"
                f" if one should, give --bind-address={own.host}"
            )
    return Result(data=found, lines=[line], notes=notes)


def _say_ready(session: Session, kind: str, report: Values) -> None:
    text = f"{kind} {report['name']} is ready on {report['host']}[{report['port']}], pid {report['pid']}"
    session.output.echo(text)
    tell_ready(text)


def _is_outside(host: str) -> bool:
    try:
        return not is_loopback(resolve(host, 2.0))
    except ConnectivityError:
        return False


def start_locator(session: Session, values: Values) -> Result:
    properties = _properties(session, values)
    site = values.get("distributed_system_id") or properties.get("distributed-system-id")
    remote = values.get("remote_locators") or properties.get("remote-locators") or ""
    if site is None and remote:
        raise ConfigurationError(
            "start locator: remote-locators without the site's own id; give --distributed-system-id=N,"
            " --J=-Dgemfire.distributed-system-id=N, a gemfire.properties file, or PYWAN_DISTRIBUTED_SYSTEM_ID"
        )
    port = values.get("port")
    result = _start(
        session,
        "locator",
        values,
        {
            "distributed_system_id": -1 if site is None else _number(site, "distributed-system-id"),
            "port": 10334 if port is None else _number(port, "--port"),
            "bind_address": values.get("bind_address") or properties.get("bind-address"),
            "locators": values.get("locators") or properties.get("locators") or "",
            "remote_locators": remote,
            "hostname_for_clients": values.get("hostname_for_clients") or properties.get("hostname-for-clients"),
            "recover_from_members": str(values.get("recover_from_members", "false")).lower() == "true",
        },
        properties,
    )
    if "port" in result.data and not session.connected:
        session.locator, session.connected = f"{result.data['connect_to']}[{result.data['port']}]", True
    return result


def salvage_disk_store(session: Session, values: Values) -> Result:
    from pywan.disk.salvage import salvage_store

    found = salvage_store(given_path(values["dir"]), given_path(values["to"]))
    table = Table(
        ("Log", "Saved", "Damage"), [(each["log"], each["saved"], each["damage"] or "none") for each in found]
    )
    return Result(
        data={"logs": found, "to": values["to"]},
        tables=[table],
        lines=[
            f"What is whole was written to {values['to']}. To go on with it, stop the member and put it in the place of"
            " the damaged folder."
        ],
    )


def start_server(session: Session, values: Values) -> Result:
    properties = _properties(session, values)
    xml = values.get("cache_xml_file") or properties.get("cache-xml-file")
    if xml is not None and not given_path(xml).is_file():
        raise ConfigurationError(f"start server: --cache-xml-file={xml}: there is no such file")
    locators = values.get("locators") or properties.get("locators") or (session.locator if session.connected else None)
    timeout = _timeout(values)
    return _start(
        session,
        "server",
        values,
        {
            "locators": locators or DEFAULT_LOCATOR,
            "cache_xml_file": str(given_path(xml).absolute()) if xml else None,
            "bind_address": values.get("bind_address") or properties.get("bind-address"),
            "port": _number(values.get("server_port"), "--server-port"),
            "hostname_for_clients": values.get("hostname_for_clients") or properties.get("hostname-for-clients"),
            "allow_callbacks": values.get("allow_callbacks") or properties.get("allow-callbacks"),
            "maximum_tombstone_memory": _number(
                values.get("maximum_tombstone_memory") or properties.get("maximum-tombstone-memory"),
                "maximum-tombstone-memory",
            ),
            "join_timeout": min(10.0, timeout / 2)
            if timeout
            else None,  # The member can then still say why it did not join.
            "maximum_shutdown_wait_time": _wait_time(values, properties.get("maximum-shutdown-wait-time")),
            "handover_time": _handover_time(values, properties.get("handover-time")),
        },
        properties,
    )


STOP_OPTIONS = (
    Option("name", "the member's name", required=True, variable="PYWAN_NAME"),
    Option("dir", "where its folder lies (the current directory)", variable="PYWAN_DIR"),
)
WAIT_OPTION = Option(
    "maximum-shutdown-wait-time",
    "seconds that a server waits at its end for its senders' queues to empty; -1: until they are (0)",
)


HANDOVER_OPTION = Option(
    "handover-time",
    "seconds that a server waits at its end for other members to take over what only it has; -1: until they have (60)",
)


def _wait_time(values: Values, otherwise: str | None = None) -> float | None:
    return _seconds(values.get("maximum_shutdown_wait_time") or otherwise, "maximum-shutdown-wait-time")


def _handover_time(values: Values, otherwise: str | None = None) -> float | None:
    return _seconds(values.get("handover_time") or otherwise, "handover-time")


def _seconds(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    wait = to_wait_time(text, option)
    return -1 if wait == math.inf else wait


def _is_forced(values: Values) -> bool:
    return str(values.get("force", "false")).lower() == "true"


def _stop(kind: str) -> Callable[[Session, Values], Result]:
    def handle(session: Session, values: Values) -> Result:
        name, directory = values["name"], values.get("dir")
        if (
            process.recorded(process.MemberFiles.of(directory, name)) is None
            and session.connected
            and directory is None
        ):
            return _stop_through_site(session, kind, name, values)
        wait, notes = _wait_time(values), []

        def tell(answer: Values) -> None:
            notes.extend(_stop_notes(name, answer, wait))
            for note in notes:  # At once, because the end of the member may take long.
                session.output.note(note)

        found = process.stop(
            kind,
            name,
            directory=directory,
            maximum_shutdown_wait_time=wait,
            handover_time=_handover_time(values),
            only_in_order=not _is_forced(values),
            on_progress=lambda told: session.output.note(f"server {name} {told['waits']}"),
            on_reply=tell,
        )
        return Result(
            data=found,
            lines=[
                f"{kind.capitalize()} {name} (pid {found['pid']}) has stopped"
                + ("" if found["how"] == "request" else f", by {found['how']}")
            ],
            notes=[*(notes if session.output.as_json else []), *found.get("said", ())],
        )

    return handle


def _stop_notes(name: str, answer: Values, wait: float | None) -> list[str]:
    notes = [_stop_note(name, answer, wait)] if answer.get("volatile_events") else []
    if answer.get("lost_copies") and not answer.get("is_refused"):
        notes.append(f"no other member can store what ends with server {name}: {answer['lost_copies']}")
    return notes


def _stop_note(name: str, answer: Values, wait: float | None) -> str:
    """Says which events a server loses by its end, unless it can send them in time."""
    wait = answer.get("maximum_shutdown_wait_time", 0) if wait is None else wait
    until = (
        "" if not wait else " unless they are sent before" if wait == -1 else f" unless they are sent within {wait:g} s"
    )
    lost = volatile_text(answer["volatile_events"])
    return f"server {name} had events of senders without persistence, which are lost{until}: {lost}"


def _stop_through_site(session: Session, kind: str, name: str, values: Values) -> Result:
    """Stops a member that was started elsewhere, through the locator that the session is connected to."""
    notes: list[str] = []
    if kind == "locator":
        status = session.ask_locator("status")
        if status["name"] != name:
            raise NotFoundError(
                f"locator {name!r} is neither in the current directory nor the one we are connected to"
                f" ({status['name']!r})"
            )
        session.ask_locator("stop")
        session.disconnect()
    else:
        (member,) = session.members(name)
        wait, handover_time, timeout = _wait_time(values), _handover_time(values), MEMBER_TIMEOUT_S
        wanted = {"maximum_shutdown_wait_time": wait, "handover_time": handover_time}
        fields = {key: value for key, value in wanted.items() if value is not None}
        if not _is_forced(values):
            fields["only_in_order"] = True
            timeout += process.stop_reply_timeout(session.ask_member(member, "status member", {}), handover_time)
        reply = session.ask_member(
            member,
            "stop member",
            fields,
            timeout=timeout,
            progress=lambda told: session.output.note(f"server {name} {told['waits']}"),
        )
        if not reply["ok"]:
            raise PywanError(reply["error"])
        process.check_not_refused(name, reply)
        notes += _stop_notes(name, reply, wait)
    return Result(
        data={"name": name, "how": "request"}, lines=[f"{kind.capitalize()} {name} was asked to stop"], notes=notes
    )


# Parts of a member's own status that the sheet shows already.
_TOLD_ABOVE = frozenset({"name", "type", "member", "pid", "host", "port", "directory"})


def _peer_text(peer: Values) -> str:
    """A line about another locator that a locator knows. The locator's problems say what is wrong with it."""
    state = "joined" if peer["joined"] else f"not joined, {peer['failures']} attempts failed"
    return f"{peer['address']}, {peer['role']}: {state}"


def _status(kind: str) -> Callable[[Session, Values], Result]:
    def handle(session: Session, values: Values) -> Result:
        found = process.status(kind, values["name"], directory=values.get("dir"))
        pairs = {key: value for key, value in found.items() if key not in ("status", "problem", "name", "kind")}
        pairs |= {key: value for key, value in found.get("status", {}).items() if key not in (*found, *_TOLD_ABOVE)}
        if kind == "locator" and "members" in pairs:
            pairs["members"] = [f"{m['name']} on {m['host']}[{m['port']}], pid {m['pid']}" for m in pairs["members"]]
            pairs["peers"] = [_peer_text(peer) for peer in pairs["peers"]]
        result = Result(data=found, tables=[Sheet(f"{kind.capitalize()} {values['name']}", readable(pairs.items()))])
        if found["state"] != "online":
            result.errors.append(
                f"{kind} {values['name']} is {found['state']}"
                + (f": {found['problem']}" if "problem" in found else f" in {found['folder']}")
            )
        return result

    return handle


def shutdown(session: Session, values: Values) -> Result:
    """Stops every server, or none. Events in queues without persistence would be lost, and losing them takes
    consent."""
    force = _is_forced(values)
    stops_locator = values.get("include_locators", "false").lower() == "true"
    time_out = to_wait_time(values["time_out"], "shutdown: --time-out") if "time_out" in values else None
    started = time.monotonic()
    while True:
        asked = session.ask_members("status member", {}, may_be_none=stops_locator)
        states = [reply for reply in asked if reply["ok"]]
        # A member that waits until its queues are empty loses nothing.
        lost = {
            reply["member"]: reply["volatile_events"]
            for reply in states
            if reply["volatile_events"] and not (time_out is None and reply["maximum_shutdown_wait_time"] == -1)
        }
        limit = (
            max((reply["maximum_shutdown_wait_time"] for reply in states), default=0) if time_out is None else time_out
        )
        left = started + limit - time.monotonic()
        if not lost or force or left <= 0:
            break
        threading.Event().wait(min(left, SHUTDOWN_LOOK_S))
    texts = [f"{member}: {volatile_text(events)}" for member, events in lost.items()]
    if (
        lost
        and not force
        and not session.output.confirm(
            f"Events of senders without persistence are lost by a shutdown: {'; '.join(texts)}. Shut down all the same?"
        )
    ):
        return Result(
            data={"would_lose": lost},
            errors=[
                "nothing was stopped, since events of senders without persistence would be lost:"
                f" {'; '.join(texts)}; give --time-out=SECONDS (-1: without limit) to wait until they are sent,"
                " or --force to lose them"
            ],
        )
    # Events that came after the last look have what is left of the time, too.
    wait = (
        None
        if time_out is None
        else -1
        if time_out == math.inf
        else round(max(0.0, started + time_out - time.monotonic()), 1)
    )
    problem = _end_site(session)
    replies = session.ask_members(
        "stop member", {} if wait is None else {"maximum_shutdown_wait_time": wait}, may_be_none=stops_locator
    )
    result = Result(data={"members": replies}, lines=[f"{reply['member']} stops" for reply in replies if reply["ok"]])
    result.notes += [
        _stop_note(reply["member"], reply, wait) for reply in replies if reply["ok"] and reply["volatile_events"]
    ]
    if problem:
        result.notes.append(f"the members end one after the other, since {problem}")
    entries = Counter[str]()
    for reply in states:
        entries.update(reply["volatile_entries"])
    if entries:
        told = ", ".join(f"region {name}: {count:,} entries" for name, count in sorted(entries.items()))
        result.notes.append(f"what regions without persistence held ends with the site: {told}")
    result.errors += _errors(replies)
    if stops_locator:
        # While the servers send what is left, they may have to ask the locator for receivers.
        waits = [
            to_wait_time(reply["maximum_shutdown_wait_time"], "maximum_shutdown_wait_time")
            for reply in replies
            if reply["ok"]
        ]
        _wait_until_left(
            session,
            {reply["member"] for reply in replies if reply["ok"]},
            process.STOP_TIMEOUT_S + max(waits, default=0.0),
        )
        session.ask_locator("stop")
        session.disconnect()
        result.lines.append("the locator stops")
    return result


def _end_site(session: Session) -> str:
    """Tells the coordinator that all members are about to end: nothing is moved between them. Returns why it could not
    be told, or nothing."""
    from pywan.base.addresses import parse_address
    from pywan.transport.control import call_once

    try:
        answer = session.ask_locator("coordination-end-site")
        if not answer["decides"] and answer.get("address"):
            answer = call_once(parse_address(answer["address"]), "coordination-end-site")
    except PywanError as error:
        return str(error)
    return "" if answer["decides"] else answer.get("problem") or "no locator coordinates the site"


def _wait_until_left(session: Session, names: set[str], timeout: float) -> None:
    """Returns when the locator counts none of `names` any more, or after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (
        any(member["name"] in names for member in session.ask_locator("servers")["servers"])
        and time.monotonic() < deadline
    ):
        threading.Event().wait(SHUTDOWN_LOOK_S)


# --- what the site wants its members to have ---


def export_configuration(session: Session, values: Values) -> Result:
    from pywan.config.cache_xml import to_xml

    things = session.ask_locator("cluster-configuration")["cluster_configuration"]
    text = to_xml(things)
    data = {"things": things, "xml": text}
    if "xml_file" not in values:
        return Result(data=data, lines=text.splitlines())
    path = given_path(values["xml_file"])
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"export cluster-configuration: {path} cannot be written: {error.strerror}") from None
    return Result(data={**data, "file": str(path)}, lines=[f"{len(things)} things were written to {path}"])


def import_configuration(session: Session, values: Values) -> Result:
    """Puts the file in the place of the cluster configuration. With APPLY, servers that run and have nothing yet make
    what the file holds. With STAGE, only servers that start from now on do."""
    from pywan.config.cache_xml import parse, to_things

    action = to_word(values.get("action", "APPLY"), "--action", ("APPLY", "STAGE"), upper=True)
    things = to_things(parse(given_path(values["xml_file"]), for_this_member=False))
    servers = session.ask_locator("servers")["servers"] if action == "APPLY" else []
    for server in servers:
        regions, gateways = (session.ask_member(server, op, {}) for op in ("list regions", "list gateways"))
        for reply in (regions, gateways):
            if not reply["ok"]:
                raise PywanError(
                    f"import cluster-configuration: server {server['name']} could not be asked for what it has, and"
                    f" nothing was changed: {reply['error']}"
                )
        if regions["regions"] or gateways["senders"] or gateways["receivers"]:
            raise ConfigurationError(
                f"import cluster-configuration: server {server['name']} has regions, senders or a receiver already, and"
                " nothing was changed; stop it, or give --action=STAGE: servers then have what the file says when they"
                " are started"
            )
    reply = session.change_configuration(action="replace", things=things)
    line = f"the cluster configuration now holds {reply['things']} things, those of {values['xml_file']}"
    result = Result(data={"things": reply["things"]}, lines=[line])
    if reply["problem"]:
        result.errors.append(reply["problem"])
    if servers:
        wanted = session.ask_locator("cluster-configuration")["cluster_configuration"]
        applied = _rows("import cluster-configuration", session.ask_members("apply configuration", {"things": wanted}))
        result.data.update(applied.data)
        result.tables, result.errors = applied.tables, result.errors + applied.errors
    return result


# --- the program itself ---


def connect(session: Session, values: Values) -> Result:
    locator = values.get("locator") or DEFAULT_LOCATOR
    status = session.connect(locator)
    data = {key: status.get(key) for key in ("name", "distributed_system_id", "host", "port")}
    return Result(
        data={**data, "locator": session.locator},
        lines=[
            f"Connected to locator {status.get('name')} at {session.locator}, distributed-system-id"
            f" {status.get('distributed_system_id')}"
        ],
    )


def disconnect(session: Session, values: Values) -> Result:
    session.disconnect()
    return Result(lines=["Disconnected"])


def describe_connection(session: Session, values: Values) -> Result:
    if not session.connected:
        return Result(data={"connected": False}, lines=["Not connected"])
    return Result(data={"connected": True, "locator": session.locator}, lines=[f"Connected to {session.locator}"])


def list_members(session: Session, values: Values) -> Result:
    status = session.ask_locator("status")
    locator = {
        "name": status["name"],
        "kind": "locator",
        "host": status["host"],
        "port": status["port"],
        "pid": status.get("pid"),
    }
    servers = [
        {"name": m["name"], "kind": "server", "host": m["host"], "port": m["port"], "pid": m["pid"]}
        for m in session.ask_locator("servers")["servers"]
    ]
    coordination = _coordination(session)
    view = {each["name"]: each for each in coordination.get("members", [])}
    for server in servers:
        seen = view.get(server["name"])
        server["view"] = seen["state"] if seen is not None else "waiting" if coordination["decides"] else "unknown"
        server["lease_ms"] = seen["lease_us"] // 1000 if seen is not None else None
    known = {server["name"] for server in servers}
    lost = [
        {
            "name": each["name"],
            "kind": "server",
            "host": each["host"],
            "port": each["port"],
            "pid": None,
            "view": each["state"],
            "lease_ms": each["lease_us"] // 1000,
        }
        for name, each in view.items()
        if name not in known
    ]
    is_coordinator = coordination["decides"] and coordination["locator"] == locator["name"]
    locator |= {"view": "coordinator" if is_coordinator else "", "lease_ms": None}
    members = [locator, *servers, *lost]
    rows = [tuple("" if value is None else value for value in member.values()) for member in members]
    return Result(
        data={"members": members},
        tables=[Table(("Name", "Kind", "Host", "Port", "Pid", "View", "Lease ms"), rows)],
    )


def _coordination(session: Session) -> dict[str, Any]:
    """Returns what the site's coordinator says of the site, or what the locator asked says if nobody coordinates."""
    from pywan.base.addresses import parse_address
    from pywan.transport.control import call_once

    try:
        told: dict[str, Any] = session.ask_locator("coordination-show")["coordination"]
    except NoLocatorError:  # A locator of a version without a coordinator.
        return {"decides": False, "coordinator": "", "address": "", "problem": "", "members": []}
    if told["decides"] or not told["address"]:
        return told
    try:
        there: dict[str, Any] = call_once(parse_address(told["address"]), "coordination-show")["coordination"]
    except PywanError as error:
        return {**told, "problem": f"coordinator {told['coordinator']} does not answer: {error}"}
    return there


def show_coordinator(session: Session, values: Values) -> Result:
    told = _coordination(session)
    pairs = [
        ("coordinator", told["coordinator"] or "none"),
        ("address", told["address"]),
        ("decides", told["decides"]),
        *((key, told[key]) for key in ("site_identity", "folder", "member_timeout_ms") if key in told),
        *((key, told[key]) for key in ("generation", "decision", "regions") if key in told),
        *((key, told[key]) for key in ("buckets", "buckets_without_primary", "lost_buckets") if key in told),
    ]
    if told.get("waits_us"):
        pairs.append(("hears_members_for_ms", told["waits_us"] // 1000))
    waited = [each["incarnation"] for each in told.get("members", []) if each["waited_for"] and each["state"] == "lost"]
    if waited:
        pairs.append(("waits_for", ", ".join(waited)))
    result = Result(data={"coordination": told}, tables=[Sheet("Coordinator", readable(pairs))])
    if told["problem"]:
        result.errors.append(told["problem"])
    return result


def describe_member(session: Session, values: Values) -> Result:
    """Shows one member: as the coordinator sees it, and as it sees itself."""
    name = values["name"]
    told = _coordination(session)
    seen = [each for each in told.get("members", []) if each["name"] == name]
    data: dict[str, Any] = {"name": name, "view": seen, "member": None}
    result = Result(data=data)
    for each in seen:
        shown = {**each, "lease_ms": each["lease_us"] // 1000, "regions": ", ".join(each["regions"])}
        del shown["lease_us"]
        result.tables.append(Sheet(f"{each['incarnation']} in the view", readable(list(shown.items()))))
    try:
        ((reply),) = session.ask_members("status member", {}, name)
    except NotFoundError:
        if not seen:
            raise
        return result
    data["member"] = reply
    if not reply["ok"]:
        result.errors.append(f"{name}: {reply['error']}")
        return result
    own = reply.get("coordination") or {}
    pairs = [(key, ", ".join(map(str, value)) if isinstance(value, list) else value) for key, value in own.items()]
    result.tables.append(Sheet(f"Member {name}", readable(pairs)))
    return result


def revoke_member(session: Session, values: Values) -> Result:
    """Says that a lost member never comes back, so that nothing waits for it any more."""
    from pywan.base.addresses import parse_address
    from pywan.transport.control import call_once

    name = values["name"]
    answer = session.ask_locator("coordination-revoke", name=name)
    if not answer["decides"] and answer.get("address"):
        answer = call_once(parse_address(answer["address"]), "coordination-revoke", name=name)
    if not answer["decides"]:
        reason = answer.get("problem") or f"locator {answer['coordinator'] or '(unknown)'} coordinates the site"
        return Result(data={"revoked": []}, errors=[f"nothing was revoked: {reason}; ask there, when it runs"])
    if answer["revoked"]:
        return Result(data=answer, lines=[f"{each} is revoked" for each in answer["revoked"]])
    if answer["alive"]:
        reason = f"{answer['alive'][0]} has a lease; stop it first (stop server), or wait until the lease is over"
    else:
        reason = f"nothing waits for a member {name}"
    return Result(data=answer, errors=[f"nothing was revoked: {reason}"])


def status_member(session: Session, values: Values) -> Result:
    replies = session.ask_members("status member", {}, _target(values))
    result = Result(
        data={"members": replies},
        errors=_errors(replies),
    )
    for reply in replies:
        if reply["ok"]:
            pairs = [(key, value) for key, value in reply.items() if key not in ("ok", "member", "name")]
            result.tables.append(Sheet(f"Member {reply['member']}", readable(pairs)))
    return result


def run_file(session: Session, values: Values) -> Result:
    """Runs the lines of a file. It stops at the first line that fails, unless it is told to go on."""
    path = given_path(values["file"])
    try:
        data, identity = read_regular(path, MAX_SCRIPT_BYTES, follow=False)
        text = data.decode()
    except FileError as error:
        raise ConfigurationError(f"run: {path} {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"run: {path} is no text in UTF-8: {error}") from None
    with session.script(identity, str(path)):
        return _run_lines(session, values, path, text)


def _run_lines(session: Session, values: Values, path: Path, text: str) -> Result:
    go_on = values.get("continue_on_error", "false").lower() == "true"
    quiet = values.get("quiet", "false").lower() == "true"
    done, failed = 0, []
    for number, line in grammar.split_lines(text):
        if not quiet:
            session.output.echo(f"{number}. {line}")
        if session.run_line(line):
            done += 1
        else:
            failed.append(f"{path}:{number}: `{line}` failed" + ("" if go_on else "; the rest was not run"))
            if not go_on:
                break
        if session.done:
            break
    return Result(data={"file": str(path), "done": done}, errors=failed)


def help_(session: Session, values: Values) -> Result:
    topic = " ".join(values.get("topic", ())).strip()
    command = next((c for c in session.commands if c.name == topic), None)
    width = session.output.width
    if command is not None:
        lines = [*wrapped(f"{command.name}: {command.help}", width), *wrapped(f"usage: {_usage(command)}", width, 7)]
        for o in command.options:
            if not o.hidden:
                lines += ["", *_about_option(o, width)]
        if any(o.variable for o in command.options):
            lines += ["", *wrapped(_PRECEDENCE, width)]
        return Result(data={"name": command.name, "usage": command.usage()}, lines=lines)
    found = [c for c in session.commands if c.name.startswith(topic)]
    if not found:
        raise NotFoundError(f"there is no command {topic!r}; `{session.help_command}` lists them")
    widest = max(len(c.name) for c in found)
    lines = []
    for group in dict.fromkeys(c.group for c in found):
        lines += ["", f"{group}:"]
        for c in found:
            if c.group == group:
                lines += wrapped_after(f"  {c.name:<{widest}}  ", c.help, width)
    return Result(data={"commands": [c.name for c in found]}, lines=lines[1:])


_PRECEDENCE = (
    "An option that is not given has the value of the environment variable behind it. The command line, with --J, is"
    " stronger than the environment, and the environment is stronger than the files of properties."
)


def _usage(command: Command) -> str:
    """The command with its required options. The help lists the others below."""
    parts = [f"--{o.name}=value" for o in command.options if o.required]
    others = any(not o.required and not o.hidden for o in command.options)
    return " ".join([command.name, *parts, *(["[--option=value ...]"] if others else [])])


def _about_option(option: Option, width: int) -> list[str]:
    """The lines about an option: `--name=value  (required)  PYWAN_NAME`, and its meaning below."""
    head = [f"--{option.name}" + ("" if option.flag else "=value"), "(required)" * option.required, option.variable]
    return [f"  {'  '.join(filter(None, head))}", *wrapped_after("      ", option.help, width)]


def wrapped_after(begin: str, text: str, width: int) -> list[str]:
    """The lines of a text, the first behind `begin` and the others below its own beginning."""
    first, *others = wrapped(text, max(20, width - len(begin)))
    return [begin + first, *(" " * len(begin) + other for other in others)]


def version(session: Session, values: Values) -> Result:
    return Result(data={"version": pywan.__version__}, lines=[f"pywan {pywan.__version__}"])


def completion(session: Session, values: Values) -> Result:
    from pywan.cli.completion import bash_script, last_words

    if "line" in values:
        found = last_words(values["line"], session.commands)
        return Result(data={"words": found}, lines=found)
    text = bash_script()
    return Result(data={"script": text}, lines=text.splitlines())


def exit_(session: Session, values: Values) -> Result:
    return Result(exit=True)


def _from_environment(*options: Option) -> tuple[Option, ...]:
    """The options, each with an environment variable of its name: `--bind-address` has PYWAN_BIND_ADDRESS."""
    return tuple(replace(o, variable="PYWAN_" + o.name.upper().replace("-", "_")) for o in options)


def _group(name: str, *commands: Command) -> tuple[Command, ...]:
    """The commands of a group: those of the program itself, and behind them those that members carry out."""
    of_members = []
    for op, about in commands_of(ManagementService).items():
        if about.group == name:
            handler = (
                _change(op, about.keeps)
                if about.keeps
                else _shown(op, about.shown)
                if about.shown is not None
                else _on_members(op)
            )
            of_members.append(Command(op, about.help, handler, (*about.options, *TARGETS), more=about.more))
    return tuple(replace(command, group=name) for command in (*commands, *of_members))


REGION = Option("region", "the region's name", required=True)
KEY_TYPE = (
    Option("key-type", "str (if not given), int, float, bool, json, hex", words=SHORT_TYPES),
    Option("key-class", field="key_type", hidden=True),
)
VALUE_TYPE = (
    Option("value-type", "str (if not given), int, float, bool, json, hex", words=SHORT_TYPES),
    Option("value-class", field="value_type", hidden=True),
)

COMMANDS: tuple[Command, ...] = (
    *_group(
        "Processes",
        Command(
            "start locator",
            "a locator as a process of its own",
            start_locator,
            _from_environment(
                *START_OPTIONS,
                Option("port", "where it listens (10334)"),
                Option("distributed-system-id", "the site's id, 0 to 255"),
                Option("remote-locators", "locators of other sites"),
                Option(
                    "recover-from-members",
                    "coordinate the site in place of a locator that is gone for good; what was decided comes from the"
                    " members",
                    flag=True,
                ),
            ),
        ),
        Command(
            "start server",
            "a server as a process of its own",
            start_server,
            _from_environment(
                *START_OPTIONS,
                Option("cache-xml-file", "its senders, regions and receiver"),
                Option(
                    "allow-callbacks",
                    "classes that may be named over the network: package.*, package.module, package.module:Class"
                    " (none)",
                ),
                Option("server-port", "where it listens (a free port)"),
                Option("maximum-tombstone-memory", "MB that remember destroyed keys (64)"),
                WAIT_OPTION,
                HANDOVER_OPTION,
            ),
        ),
        Command(
            "salvage disk-store",
            "save what is whole of a damaged disk store",
            salvage_disk_store,
            (
                Option("dir", "the folder disk-store-NAME of a member that is stopped", required=True),
                Option("to", "a new folder", required=True),
            ),
        ),
        Command("stop locator", "stop a locator and wait for its end", _stop("locator"), STOP_OPTIONS),
        Command(
            "stop server",
            "stop a server and wait for its end",
            _stop("server"),
            (*STOP_OPTIONS, WAIT_OPTION, HANDOVER_OPTION, Option("force", "also if entries are lost by it", flag=True)),
        ),
        Command("status locator", "whether it runs, and what it knows", _status("locator"), STOP_OPTIONS),
        Command("status server", "whether it runs, and what it holds", _status("server"), STOP_OPTIONS),
        Command(
            "shutdown",
            "stop all servers of the site",
            shutdown,
            (
                Option("include-locators", "the locator too", flag=True),
                Option("time-out", "seconds to wait until what is queued is sent; -1: without limit"),
                Option("force", "also if events are lost by it", flag=True),
            ),
        ),
    ),
    *_group(
        "The site",
        Command(
            "connect", "say which locator is asked", connect, (Option("locator", f"host[port] ({DEFAULT_LOCATOR})"),)
        ),
        Command("disconnect", "forget it", disconnect),
        Command("describe connection", "which locator is asked", describe_connection),
        Command("list members", "the site's processes", list_members),
        Command(
            "describe member",
            "one member, as the coordinator sees it and as it sees itself",
            describe_member,
            (Option("name", "its name", required=True),),
        ),
        Command("show coordinator", "which locator coordinates, and the site's tables in numbers", show_coordinator),
        Command(
            "revoke member",
            "a lost member never comes back: what waits for it goes on without it",
            revoke_member,
            (Option("name", "its name", required=True),),
        ),
        Command("status member", "what members say of themselves", status_member, TARGETS),
        Command(
            "export cluster-configuration",
            "what the site wants its members to have, as a cache.xml",
            export_configuration,
            (Option("xml-file", "where it is written (if not given, it is shown)"),),
        ),
        Command(
            "import cluster-configuration",
            "have a cache.xml take its place",
            import_configuration,
            (
                Option("xml-file", "the file", required=True),
                Option(
                    "action",
                    "APPLY: servers that run and have nothing yet make it; STAGE: only those that start later (APPLY)",
                    words=("APPLY", "STAGE"),
                ),
            ),
        ),
    ),
    *_group(
        "Gateways",
        Command(
            "list gateways",
            "senders and receivers, their state and queues",
            list_gateways,
            (
                Option("senders-only", "no receivers", flag=True),
                Option("receivers-only", "no senders", flag=True),
                *TARGETS,
            ),
        ),
        Command(
            "start gateway-sender",
            "begin to queue and to send",
            start_gateway_sender,
            (
                SENDER_ID,
                Option("clean-queues", "drop what is queued first; on all members, none of which runs it", flag=True),
                *TARGETS,
            ),
        ),
        Command(
            "repair clock",
            "stamp with the time what a clock that was ahead has stamped, and send it again",
            repair_clock,
            (
                Option("region", "only these regions, several with commas (all)", field="regions"),
                Option("dry-run", "only count what is ahead", flag=True),
                *TARGETS,
            ),
            more="After the clock has been put right ([operations.md](operations.md#clocks)). Tells its progress; a"
            " table says what was stamped anew, per region and sender",
        ),
    ),
    *_group("Disk stores"),
    *_group(
        "Regions",
        Command(
            "describe region",
            "one region",
            describe_region,
            (Option("name", "the region's name", required=True), *TARGETS),
        ),
        Command(
            "get",
            "a value",
            get,
            (REGION, Option("key", "the key", required=True), *KEY_TYPE),
            more="Fails where the key is not there",
        ),
        Command(
            "put",
            "store a value",
            put,
            (
                REGION,
                Option("key", "the key", required=True),
                Option("value", "the value", required=True),
                *KEY_TYPE,
                *VALUE_TYPE,
                IF_NOT_EXISTS,
            ),
        ),
        Command(
            "remove",
            "remove a key, or all",
            remove,
            (REGION, Option("key", "the key"), Option("all", "all keys", flag=True), *KEY_TYPE),
            more="Fails where the key is not there",
        ),
        Command("query size", "how many keys a region holds", query_size, (REGION,)),
        Command(
            "query",
            "select count(*) from /region",
            query_size,
            (Option("query", "the query", required=True),),
            more="And nothing else",
        ),
    ),
    *_group(
        "This program",
        Command(
            "run",
            "the commands of a file",
            run_file,
            (
                Option("file", "the file", required=True),
                Option("continue-on-error", "go on after a failure", flag=True),
                Option("quiet", "do not show the lines", flag=True),
            ),
        ),
        Command("help", "all commands, or one", help_),
        Command("version", "of pywan", version),
        Command(
            "completion",
            "what bash reads so that Tab completes commands, options and values",
            completion,
            (Option("line", "the beginning of a line: what its last word could become", hidden=True),),
        ),
        Command("exit", "leave the shell", exit_),
        Command("quit", "leave the shell", exit_),
    ),
)

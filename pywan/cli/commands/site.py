"""Owns the commands about the site: which locator is asked, its members, and its coordinator."""

from __future__ import annotations

from typing import Any

from pywan.cli.commands.of_members import TARGETS, Values, errors_of, target_of
from pywan.cli.encryption import SSL_OPTIONS, ssl_in
from pywan.cli.grammar import Command
from pywan.cli.identity import IDENTITY_OPTIONS, identity_in
from pywan.cli.layout import Sheet, Table
from pywan.cli.output import Result, readable
from pywan.cli.session import DEFAULT_LOCATOR, Session
from pywan.config.options import Option
from pywan.errors import NoLocatorError, NotFoundError, PywanError
from pywan.site.listing import processes_of

# What a region lacks, as the coordinator counts it, in the order of the table.
LACKS = ("buckets_without_primary", "missing_copies", "images")
LOST_BUCKETS = (
    "lost_buckets counts the buckets that began anew, empty, since this coordinator started, as all members with a"
    " replica"
    " were gone or silent for too long: put their data again, and give the region more redundant copies"
)


def connect(session: Session, values: Values) -> Result:
    locator = values.get("locator") or DEFAULT_LOCATOR
    session.use(ssl_in(values), identity_in(values))
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
    locator = session.ask_locator("status")
    servers = session.ask_locator("servers")["servers"]
    members = processes_of(locator, servers, coordination_of(session))
    rows = [tuple("" if value is None else value for value in member.values()) for member in members]
    return Result(
        data={"members": members},
        tables=[Table(("Name", "Kind", "Host", "Port", "Pid", "View", "Lease ms"), rows)],
    )


def coordination_of(session: Session) -> dict[str, Any]:
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
        there: dict[str, Any] = call_once(
            parse_address(told["address"]), "coordination-show", way=session.links.locator
        )["coordination"]
    except PywanError as error:
        return {**told, "problem": f"coordinator {told['coordinator']} does not answer: {error}"}
    return there


def show_coordinator(session: Session, values: Values) -> Result:
    told = coordination_of(session)
    pairs = [
        ("coordinator", told["coordinator"] or "none"),
        ("address", told["address"]),
        ("decides", told["decides"]),
        *((key, told[key]) for key in ("site_identity", "folder", "member_timeout_ms") if key in told),
        *((key, told[key]) for key in ("term", "standby", "newest_record") if key in told),
        *((key, told[key]) for key in ("takeover_waits",) if told.get(key)),
        *((key, told[key]) for key in ("run", "generation", "decision", "regions") if key in told),
        *(
            (key, told[key])
            for key in ("buckets", "buckets_without_primary", "missing_copies", "images")
            if key in told
        ),
        *((key, told[key]) for key in ("lost_buckets",) if key in told),
    ]
    if told.get("waits_us"):
        pairs.append(("hears_members_for_ms", told["waits_us"] // 1000))
    for region, waiting in told.get("waiting_regions", {}).items():
        who = ", ".join(waiting["waits_for"]) or "a member that stores it"
        pairs.append((f"region {region}", f"{waiting['buckets']} buckets without a primary wait for {who}"))
    waited = [each["incarnation"] for each in told.get("members", []) if each["waited_for"] and each["state"] == "lost"]
    if waited:
        pairs.append(("waits_for", ", ".join(waited)))
    result = Result(data={"coordination": told}, tables=[Sheet("Coordinator", readable(pairs))])
    if incomplete := told.get("incomplete_regions"):
        rows = [(region, *(counts[each] for each in LACKS)) for region, counts in incomplete.items()]
        result.tables.append(
            Table(("Region", "Buckets without a primary", "Missing replicas", "Snapshots on their way"), rows)
        )
    if told.get("lost_buckets"):
        result.notes.append(LOST_BUCKETS)
    if told["problem"]:
        result.errors.append(told["problem"])
    return result


def describe_member(session: Session, values: Values) -> Result:
    """Shows one member: as the coordinator sees it, and as it sees itself."""
    name = values["name"]
    told = coordination_of(session)
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
    pairs += [(key, reply[key]) for key in ("clocks_ahead", "restarted_threads", "backlog", "memory") if reply.get(key)]
    result.tables.append(Sheet(f"Member {name}", readable(pairs)))
    return result


def revoke_member(session: Session, values: Values) -> Result:
    """Says that a lost member never comes back, so that nothing waits for it any more."""
    name = values["name"]
    answer = session.ask_coordinator("coordination-revoke", name=name)
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


def reload_certificates(session: Session, values: Values) -> Result:
    """Has members, and the locator that is asked, read the files of their certificates again."""
    wanted = target_of(values)
    replies = session.ask_members("reload certificates", {}, wanted, may_be_none=True)
    if wanted is None:
        try:
            replies.append({**session.ask_locator("reload-certificates"), "member": session.locator, "ok": True})
        except PywanError as error:
            replies.append({"member": session.locator, "ok": False, "error": str(error)})
    return Result(
        data={"members": replies},
        lines=[
            f"{reply['member']}: {', '.join(reply['files']) or 'nothing is encrypted'}"
            for reply in replies
            if reply["ok"]
        ],
        errors=errors_of(replies),
    )


def status_member(session: Session, values: Values) -> Result:
    replies = session.ask_members("status member", {}, target_of(values))
    result = Result(
        data={"members": replies},
        errors=errors_of(replies),
    )
    for reply in replies:
        if reply["ok"]:
            pairs = [(key, value) for key, value in reply.items() if key not in ("ok", "member", "name")]
            result.tables.append(Sheet(f"Member {reply['member']}", readable(pairs)))
    return result


COMMANDS = (
    Command(
        "connect",
        "say which locator is asked",
        connect,
        (Option("locator", f"host[port] ({DEFAULT_LOCATOR})"), *SSL_OPTIONS, *IDENTITY_OPTIONS),
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
    Command(
        "reload certificates",
        "members and the locator read their certificates again, without a restart",
        reload_certificates,
        TARGETS,
    ),
    Command("status member", "what members say of themselves", status_member, TARGETS),
)

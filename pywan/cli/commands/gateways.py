"""Owns the commands about gateway senders and receivers that ask or show more than one row for each member."""

from __future__ import annotations

from typing import Any

from pywan.base.amounts import duration_text, moment_text
from pywan.cli.commands.of_members import TARGETS, Values, errors_of, on_members, target_of
from pywan.cli.grammar import Command, GrammarError
from pywan.cli.layout import Table
from pywan.cli.output import Result
from pywan.cli.session import Session
from pywan.config.attributes import queue_words
from pywan.config.options import Option
from pywan.errors import ConfigurationError
from pywan.gateway.status import NOT_RUNNING
from pywan.member.answers import SENDER_ID, receivers_text
from pywan.protocol.members import check_receivers

REPAIR_TIMEOUT_S = 86400.0  # The member tells how far it is, and Ctrl-C ends the command.


def list_gateways(session: Session, values: Values) -> Result:
    senders_only = values.pop("senders_only", "false").lower() == "true"
    receivers_only = values.pop("receivers_only", "false").lower() == "true"
    if senders_only and receivers_only:
        raise GrammarError("list gateways: --senders-only and --receivers-only exclude each other", "list gateways")
    replies = session.ask_members("list gateways", {}, target_of(values))
    result = Result(errors=errors_of(replies))
    senders = [{**view, "member": reply["member"]} for reply in replies if reply["ok"] for view in reply["senders"]]
    receivers = [{**view, "member": reply["member"]} for reply in replies if reply["ok"] for view in reply["receivers"]]
    senders.sort(key=lambda view: (view["id"], view["member"]))
    if not receivers_only:
        result.data["senders"] = senders
        if senders:
            result.tables.append(_table_of_senders(senders))
    if not senders_only:
        loads = {each["member"]: each["load"] for each in check_receivers(session.ask_locator("receivers"))}
        for view in receivers:
            view["load"] = loads.get(view["member"])  # None: the locator does not know the receiver.
        result.data["receivers"] = receivers
        if receivers:
            result.tables.append(_table_of_receivers(receivers))
    if not result.tables and result.ok:
        result.lines.append("GatewaySenders or GatewayReceivers are not available in the site")
    return result


def _table_of_senders(senders: list[Values]) -> Table:
    columns = {
        "GatewaySender Id": "id",
        "Member": "member",
        "Remote Cluster Id": "remote_distributed_system_id",
        "Type": "type",
        "Status": "status",
        "Queued Events": "queue_size",
    }
    return Table(
        (*columns, "Receiver Location"),
        [(*(view[key] for key in columns.values()), receivers_text(view)) for view in senders],
        "Gateway senders",
        {
            "GatewaySender Id": "Sender",
            "Remote Cluster Id": "Remote",
            "Queued Events": "Queued",
            "Receiver Location": "Receiver",
        },
    )


def _table_of_receivers(receivers: list[Values]) -> Table:
    """A sender has a connection for each of its dispatchers. The table names each sender once. The load is what the
    locator knows, by which it chooses among receivers."""
    rows = [
        (
            view["member"],
            view["port"],
            view["sender_count"],
            view["load"],
            list(dict.fromkeys(name.split(" (")[0] for name in view["connected_senders"])),
        )
        for view in receivers
    ]
    return Table(("Member", "Port", "Sender Count", "Load", "Senders Connected"), rows, "Gateway receivers")


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
        # First all of them: a member that runs it would send what another one has yet to drop.
        replies = session.ask_members("clean gateway-sender", {"id": values["id"]})
        if errors := errors_of(replies, "start gateway-sender on "):
            return Result(data={"members": replies}, errors=errors)
        values = {name: value for name, value in values.items() if name != "clean_queues"}
    return on_members("start gateway-sender")(session, values)


def repair_clock(session: Session, values: Values) -> Result:
    target = target_of(values)
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
        errors=errors_of(replies),
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
            (reply["member"], queue_words(id), "", "", c["queued"], c["parked"])
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


COMMANDS = (
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
        " table says what was stamped anew, per region, sender and queue",
    ),
)

"""Owns the commands about asynchronous event queues whose options or answers need more than a row for each member."""

from __future__ import annotations

from typing import Any

from pywan.cli.commands.of_members import TARGETS, Values, changing, errors_of, target_of
from pywan.cli.grammar import Command
from pywan.cli.layout import Sheet, Table
from pywan.cli.output import Result, readable
from pywan.cli.session import Session
from pywan.config.attributes import rows_of
from pywan.config.options import Option, attribute_options
from pywan.errors import ConfigurationError
from pywan.member.answers import IF_NOT_EXISTS, lag_text, ledger_fault
from pywan.member.queue_commands import QUEUE_ID

LISTENER_PARAMETERS = Option(
    "listener-param",
    "name#value for the constructor of the listener's class (several with commas)",
    field="listener_parameters",
)


def create_queue(session: Session, values: Values) -> Result:
    given = values.pop("listener_parameters", None)
    if given is not None:
        values["async_event_listener"] = {"class": values["async_event_listener"], "parameters": _parameters(given)}
    return changing("create async-event-queue", "put")(session, values)


def _parameters(given: str) -> dict[str, str]:
    parameters = {}
    for pair in given.split(","):
        name, mark, value = pair.partition("#")
        if not mark or not name.strip():
            raise ConfigurationError(
                f"create async-event-queue: --listener-param: {pair!r} is no name#value, as in url#sqlite:orders.db"
            )
        parameters[name.strip()] = value
    return parameters


def list_queues(session: Session, values: Values) -> Result:
    replies = session.ask_members("list async-event-queues", {}, target_of(values))
    result = Result(errors=errors_of(replies))
    queues = [
        {**view, "member": reply["member"]} for reply in replies if reply["ok"] for view in reply["async_event_queues"]
    ]
    queues.sort(key=lambda view: (view["member"], view["id"]))
    result.data["async_event_queues"] = queues
    if queues:
        result.tables.append(_table(queues))
    elif result.ok:
        result.lines.append("No Async Event Queues Found")
    return result


def _table(queues: list[Values]) -> Table:
    columns = {
        "Member": "member",
        "ID": "id",
        "Batch Size": "batch_size",
        "Persistent": "persistent",
        "Disk Store": "disk_store_name",
        "Max Memory": "maximum_queue_memory",
        "Listener": "listener",
        "Created with paused event processing": "pause_event_processing",
        "Currently Paused": "paused",
        "Queued Events": "queue_size",
    }
    return Table(
        tuple(columns),
        [tuple(_listener(view) if key == "listener" else view[key] for key in columns.values()) for view in queues],
        "",
        {
            "Batch Size": "Batch",
            "Max Memory": "Memory",
            "Created with paused event processing": "Created Paused",
            "Currently Paused": "Paused",
            "Queued Events": "Queued",
        },
    )


def _listener(view: Values) -> Any:
    """The listener's class, without its parameters: a password may be among them."""
    named = view["listener"]
    return named["class"] if isinstance(named, dict) else named


def describe_queue(session: Session, values: Values) -> Result:
    replies = session.ask_members("describe async-event-queue", values, target_of(values))
    result = Result(data={"members": replies}, errors=errors_of(replies))
    for reply in replies:
        if not reply["ok"]:
            continue
        if fault := ledger_fault(reply):
            result.errors.append(f"{reply['member']}: {fault}")
        attributes = reply["attributes"]
        pairs = [
            ("status", reply["status"]),
            ("type", reply["type"]),
            ("listener", _listener(reply)),
            ("queued events", reply["queue_size"]),
            ("parked events", reply["parked_count"]),
            ("lag", lag_text(reply)),
            *(
                (row.geode_name, attributes[row.name])
                for row in rows_of("async-event-queue")
                if row.name not in ("id", "async_event_listener") and attributes[row.name] not in (row.default, [])
            ),
        ]
        result.tables.append(Sheet(f"Queue {reply['id']} on {reply['member']}", readable(pairs)))
    return result


COMMANDS = (
    Command(
        "create async-event-queue",
        "create a queue whose events a listener in the member gets",
        create_queue,
        (*attribute_options("async-event-queue"), LISTENER_PARAMETERS, IF_NOT_EXISTS, *TARGETS),
        more="The listener's class is in the members' `--classpath`, and `--allow-callbacks` must allow it",
    ),
    Command(
        "list async-event-queues",
        "the queues of each member",
        list_queues,
        TARGETS,
    ),
    Command(
        "describe async-event-queue",
        "one queue: its state, its lag and its attributes",
        describe_queue,
        (QUEUE_ID, *TARGETS),
        more="`--json` has the ledger and the statistics too",
    ),
)

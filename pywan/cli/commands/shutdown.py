"""Owns the command that stops all servers of a site, or none."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from pywan.cli.commands.of_members import Values, errors_of
from pywan.cli.commands.server_options import is_forced
from pywan.cli.commands.stopping import stop_note
from pywan.cli.grammar import Command
from pywan.cli.output import Result
from pywan.cli.session import Session
from pywan.config.options import Option
from pywan.config.values import to_wait_time
from pywan.errors import PywanError
from pywan.member import process
from pywan.member.handover import volatile_entries_of, volatile_events_of
from pywan.stats import volatile_text

SHUTDOWN_LOOK_S = 0.2  # The time between two looks at what members still have.


def shutdown(session: Session, values: Values) -> Result:
    """Stops every server, or none. Events in queues without persistence would be lost, and losing them takes
    consent."""
    is_free_to_lose = is_forced(values)
    stops_locator = values.get("include_locators", "false").lower() == "true"
    time_out = to_wait_time(values["time_out"], "shutdown: --time-out") if "time_out" in values else None
    started = time.monotonic()
    states, lost = _wait_for_queues(session, started, time_out, is_free_to_lose, stops_locator)
    if lost and not is_free_to_lose:
        refusal = _ask_consent(session, lost)
        if refusal is not None:
            return refusal
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
    stopping = [reply for reply in replies if reply["ok"]]
    result = Result(data={"members": replies}, lines=[f"{reply['member']} stops" for reply in stopping])
    result.notes += [stop_note(reply["member"], reply, wait) for reply in stopping if reply["volatile_events"]]
    if problem:
        result.notes.append(f"the members end one after the other, since {problem}")
    entries = volatile_entries_of(states)
    if entries:
        told = ", ".join(f"region {name}: {count:,} entries" for name, count in sorted(entries.items()))
        result.notes.append(f"what regions without persistence held ends with the site: {told}")
    result.errors += errors_of(replies)
    if stops_locator:
        _stop_locator(session, stopping)
        result.lines.append("the locator stops")
    return result


def _wait_for_queues(
    session: Session, started: float, time_out: float | None, is_free_to_lose: bool, may_be_none: bool
) -> tuple[list[Values], dict[str, Any]]:
    """Waits until the members would lose no events by their end, unless they are free to, or until the time is over.
    Returns their states, and what each would lose."""
    while True:
        asked = session.ask_members("status member", {}, may_be_none=may_be_none)
        states = [reply for reply in asked if reply["ok"]]
        lost = volatile_events_of(states, time_out)
        limit = (
            max((reply["maximum_shutdown_wait_time"] for reply in states), default=0) if time_out is None else time_out
        )
        left = started + limit - time.monotonic()
        if not lost or is_free_to_lose or left <= 0:
            return states, lost
        threading.Event().wait(min(left, SHUTDOWN_LOOK_S))


def _ask_consent(session: Session, lost: dict[str, Any]) -> Result | None:
    """Asks whether the events may be lost. Returns the result if they may not."""
    texts = "; ".join(f"{member}: {volatile_text(events)}" for member, events in lost.items())
    if session.output.confirm(
        f"Events in queues without persistence are lost by a shutdown: {texts}. Shut down all the same?"
    ):
        return None
    return Result(
        data={"would_lose": lost},
        errors=[
            "nothing was stopped, since events in queues without persistence would be lost:"
            f" {texts}; give --time-out=SECONDS (-1: without limit) to wait until they are sent,"
            " or --force to lose them"
        ],
    )


def _stop_locator(session: Session, stopping: list[Values]) -> None:
    """Stops the locator after the members: while they send what is left, they may have to ask it for receivers."""
    waits = [to_wait_time(reply["maximum_shutdown_wait_time"], "maximum_shutdown_wait_time") for reply in stopping]
    names = {reply["member"] for reply in stopping}
    _wait_until_left(session, names, process.STOP_TIMEOUT_S + max(waits, default=0.0))
    session.ask_locator("stop")
    session.disconnect()


def _end_site(session: Session) -> str:
    """Tells the coordinator that all members are about to end: nothing is moved between them. Returns why it could not
    be told, or nothing."""
    try:
        answer = session.ask_coordinator("coordination-end-site")
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


COMMANDS = (
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
)

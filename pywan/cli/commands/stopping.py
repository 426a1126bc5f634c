"""Owns the commands that stop one locator or server, and those that say whether it runs."""

from __future__ import annotations

from collections.abc import Callable

from pywan.cli.commands.of_members import Values
from pywan.cli.commands.server_options import SERVER_OPTIONS, is_forced, seconds_of
from pywan.cli.grammar import Command
from pywan.cli.layout import Sheet
from pywan.cli.output import Result, readable
from pywan.cli.session import MEMBER_TIMEOUT_S, Session
from pywan.config.options import Option
from pywan.errors import NotFoundError, PywanError
from pywan.member import process
from pywan.stats import volatile_text

STOP_OPTIONS = (
    Option("name", "the member's name", required=True, variable="PYWAN_NAME"),
    Option("dir", "where its folder lies (the current directory)", variable="PYWAN_DIR"),
)


def _stop(kind: str) -> Callable[[Session, Values], Result]:
    def handle(session: Session, values: Values) -> Result:
        name, directory = values["name"], values.get("dir")
        if (
            process.recorded(process.MemberFiles.of(directory, name)) is None
            and session.connected
            and directory is None
        ):
            return _stop_through_site(session, kind, name, values)
        wait, notes = seconds_of(values, "maximum_shutdown_wait_time"), []

        def tell(answer: Values) -> None:
            notes.extend(stop_notes(name, answer, wait))
            for note in notes:  # At once, because the end of the member may take long.
                session.output.note(note)

        found = process.stop(
            kind,
            name,
            directory=directory,
            maximum_shutdown_wait_time=wait,
            handover_time=seconds_of(values, "handover_time"),
            only_in_order=not is_forced(values),
            links=session.make_links,
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


def stop_notes(name: str, answer: Values, wait: float | None) -> list[str]:
    notes = [stop_note(name, answer, wait)] if answer.get("volatile_events") else []
    if answer.get("lost_copies") and not answer.get("is_refused"):
        notes.append(f"no other member can store what ends with server {name}: {answer['lost_copies']}")
    return notes


def stop_note(name: str, answer: Values, wait: float | None) -> str:
    """Says which events a server loses by its end, unless it can send them in time."""
    wait = answer.get("maximum_shutdown_wait_time", 0) if wait is None else wait
    until = (
        "" if not wait else " unless they are sent before" if wait == -1 else f" unless they are sent within {wait:g} s"
    )
    lost = volatile_text(answer["volatile_events"])
    return f"server {name} had events in queues without persistence, which are lost{until}: {lost}"


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
        wait, handover_time, timeout = (
            seconds_of(values, "maximum_shutdown_wait_time"),
            seconds_of(values, "handover_time"),
            MEMBER_TIMEOUT_S,
        )
        wanted = {"maximum_shutdown_wait_time": wait, "handover_time": handover_time}
        fields = {key: value for key, value in wanted.items() if value is not None}
        if not is_forced(values):
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
        notes += stop_notes(name, reply, wait)
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
        found = process.status(kind, values["name"], directory=values.get("dir"), links=session.make_links)
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


COMMANDS = (
    Command("stop locator", "stop a locator and wait for its end", _stop("locator"), STOP_OPTIONS),
    Command(
        "stop server",
        "stop a server and wait for its end",
        _stop("server"),
        (
            *STOP_OPTIONS,
            SERVER_OPTIONS["maximum_shutdown_wait_time"],
            SERVER_OPTIONS["handover_time"],
            Option("force", "also if entries are lost by it", flag=True),
        ),
    ),
    Command("status locator", "whether it runs, and what it knows", _status("locator"), STOP_OPTIONS),
    Command("status server", "whether it runs, and what it holds", _status("server"), STOP_OPTIONS),
)

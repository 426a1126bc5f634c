"""Owns the commands that members carry out: each asks them, shows their answers, and keeps what was changed.

What such a command does, and how its answers are shown, says the member's method
(docs/decisions/0047-a-command-is-a-method-of-the-member.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pywan.cli.grammar import Command
from pywan.cli.layout import Table
from pywan.cli.output import Result
from pywan.cli.session import Session
from pywan.config.keeping import (
    attributes_to_keep,
    check_saved,
    has_no_such_thing,
    members_that_changed,
    members_that_may_have_it,
)
from pywan.config.options import Option, Shown, commands_of
from pywan.errors import PywanError
from pywan.member.management import ManagementService

Values = dict[str, Any]


MEMBER = Option("member", "only this member (several with commas)", field="member")


MEMBERS = Option("members", "the same", field="member", hidden=True)


TARGETS = (MEMBER, MEMBERS)


def target_of(values: Values) -> str | None:
    target: str | None = values.pop("member", None)
    return target


def on_members(op: str) -> Callable[[Session, Values], Result]:
    """A handler that asks every member to do `op` and shows a row for each. A member that fails makes the command fail.
    The other members go on."""

    def handle(session: Session, values: Values) -> Result:
        return rows_of(op, session.ask_members(op, values, target_of(values)))

    return handle


def rows_of(op: str, replies: list[Values]) -> Result:
    """The result with a row for each member that did it. A member that failed has an error, and no row as well."""
    rows = [(reply["member"], "OK", reply.get("status", "")) for reply in replies if reply["ok"]]
    result = Result(data={"members": replies}, tables=[Table(("Member", "Status", "Message"), rows)] if rows else [])
    result.errors += errors_of(replies, f"{op} on ")
    return result


def errors_of(replies: list[Values], begin: str = "") -> list[str]:
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


def changing(op: str, action: str) -> Callable[[Session, Values], Result]:
    """A handler like that of `_on_members`, for a command that changes what the site wants its members to have.
    `action` (put, alter, remove) says what it does with the thing in the cluster configuration.

    The handler puts or alters it there if at least one member did it, and removes it if no member has it any more. A
    command that changed nothing on any member changes nothing there (pywan.config.keeping).
    """
    kind = op.partition(" ")[2]

    def handle(session: Session, values: Values) -> Result:
        target = target_of(values)
        replies = session.ask_members(op, values, target)
        name = str(values.get("id") or values.get("name") or "").lstrip("/")
        changed = members_that_changed(replies)
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
        result = rows_of(op, replies)
        result.notes += notes
        result.errors += problems
        return result

    return handle


def _keep(session: Session, action: str, kind: str, name: str, values: Values, replies: list[Values]) -> list[str]:
    """Brings a change into the cluster configuration, and returns notes about it. A `remove` that a member refused
    because it has no such thing counts as done when the thing was removed from the cluster configuration."""
    if action == "remove":
        others = members_that_may_have_it(replies)
        if others:
            return [f"{kind} {name} stays in the cluster configuration, since {', '.join(others)} may still have it"]
        change = session.change_configuration(action="remove", kind=kind, name=name)
        for reply in filter(has_no_such_thing, replies if change["changed"] else ()):
            reply.update(ok=True, status=f"{kind} {name} was not there; it was removed from the cluster configuration")
            del reply["error"], reply["kind"]
        check_saved(change)
        return []
    change = session.change_configuration(action=action, kind=kind, name=name, attributes=attributes_to_keep(values))
    check_saved(change)
    if change["is_there"]:
        return []
    return [
        f"{kind} {name} is not in the cluster configuration, so this holds until the members are restarted; change it"
        " in their cache.xml too"
    ]


def shown_as(op: str, shown: Shown) -> Callable[[Session, Values], Result]:
    """A handler that asks every member, and shows the answers as the command's `Shown` says."""

    def handle(session: Session, values: Values) -> Result:
        replies = session.ask_members(op, values, target_of(values))
        result = Result(
            data={"members": replies},
            errors=errors_of(replies),
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


def group(name: str, *commands: Command) -> tuple[Command, ...]:
    """The commands of a group: those of the program itself, and behind them those that members carry out."""
    of_members = []
    for op, about in commands_of(ManagementService).items():
        if about.group == name:
            handler = (
                changing(op, about.keeps)
                if about.keeps
                else shown_as(op, about.shown)
                if about.shown is not None
                else on_members(op)
            )
            of_members.append(Command(op, about.help, handler, (*about.options, *TARGETS), more=about.more))
    return tuple(replace(command, group=name) for command in (*commands, *of_members))

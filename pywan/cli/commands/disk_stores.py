"""Owns the command about a disk store that no member has open."""

from __future__ import annotations

from pywan.base.files import given_path
from pywan.cli.commands.of_members import Values
from pywan.cli.grammar import Command
from pywan.cli.layout import Table
from pywan.cli.output import Result
from pywan.cli.session import Session
from pywan.config.options import Option


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


COMMANDS = (
    Command(
        "salvage disk-store",
        "save what is whole of a damaged disk store",
        salvage_disk_store,
        (
            Option("dir", "the folder disk-store-NAME of a member that is stopped", required=True),
            Option("to", "a new folder", required=True),
        ),
    ),
)

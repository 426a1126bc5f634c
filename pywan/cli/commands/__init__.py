"""Owns the table of commands: their order and their groups. What a command is about says in which module it is."""

from __future__ import annotations

from pywan.cli.commands import (
    async_queues,
    certificates,
    configuration,
    disk_stores,
    gateways,
    program,
    regions,
    shutdown,
    site,
    starting,
    stopping,
    users,
)
from pywan.cli.commands.of_members import group
from pywan.cli.grammar import Command

COMMANDS: tuple[Command, ...] = (
    *group("Processes", *starting.COMMANDS, *disk_stores.COMMANDS, *stopping.COMMANDS, *shutdown.COMMANDS),
    *group("The site", *site.COMMANDS, *configuration.COMMANDS),
    *group("Gateways", *gateways.COMMANDS),
    *group("Asynchronous event queues", *async_queues.COMMANDS),
    *group("Disk stores"),
    *group("Regions", *regions.COMMANDS),
    *group("Encryption", *certificates.COMMANDS),
    *group("Users", *users.COMMANDS),
    *group("This program", *program.COMMANDS),
)

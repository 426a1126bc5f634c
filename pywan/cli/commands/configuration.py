"""Owns the commands that bring the cluster configuration into a cache.xml and back."""

from __future__ import annotations

from pywan.base.files import given_path
from pywan.cli.commands.of_members import Values, rows_of
from pywan.cli.grammar import Command
from pywan.cli.output import Result
from pywan.cli.session import Session
from pywan.config.keeping import check_has_nothing
from pywan.config.options import Option
from pywan.config.values import to_word
from pywan.errors import ConfigurationError


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
        there = (
            session.ask_member(server, f"list {what}", {}) for what in ("regions", "gateways", "async-event-queues")
        )
        check_has_nothing(server["name"], *there)
    reply = session.change_configuration(action="replace", things=things)
    line = f"the cluster configuration now holds {reply['things']} things, those of {values['xml_file']}"
    result = Result(data={"things": reply["things"]}, lines=[line])
    if reply["problem"]:
        result.errors.append(reply["problem"])
    if servers:
        wanted = session.ask_locator("cluster-configuration")["cluster_configuration"]
        applied = rows_of(
            "import cluster-configuration", session.ask_members("apply configuration", {"things": wanted})
        )
        result.data.update(applied.data)
        result.tables, result.errors = applied.tables, result.errors + applied.errors
    return result


COMMANDS = (
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
)

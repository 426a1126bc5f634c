"""Owns the commands that start locators and servers as processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pywan.base.addresses import is_loopback, parse_locators, resolve
from pywan.base.files import given_path
from pywan.cli.commands.of_members import Values
from pywan.cli.commands.server_options import SERVER_OPTIONS, server_options_in
from pywan.cli.encryption import SSL_OPTIONS, ssl_in
from pywan.cli.grammar import FROM_ENVIRONMENT, Command
from pywan.cli.identity import SECURITY_OPTIONS, check_no_password, security_in
from pywan.cli.output import Result
from pywan.cli.properties import Properties, gather
from pywan.cli.service import tell_ready
from pywan.cli.session import DEFAULT_LOCATOR, Session
from pywan.config.options import Option
from pywan.config.values import MAX_WAIT_S, to_int
from pywan.errors import ConfigurationError, ConnectivityError
from pywan.member import process

START_OPTIONS = (
    Option("name", "the member's name", required=True),
    Option("dir", "where its folder lies (the current directory)"),
    Option("properties-file", "a file of NAME=VALUE lines"),
    Option("J", "-Dgemfire.NAME=VALUE sets the property NAME", many=True, field="java"),
    Option("log-level", "info, warning, fine ...", words=tuple(process.LOG_LEVELS)),
    Option("classpath", "directories from which filter classes are imported"),
    Option("foreground", "do not detach; the log goes to standard error", flag=True),
    Option("timeout", "seconds until it must be ready (60)"),
    *SSL_OPTIONS,
    *SECURITY_OPTIONS,
)


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
            "member_timeout_ms": _number(
                values.get("member_timeout") or properties.get("member-timeout"), "member-timeout"
            ),
            "recover_from_members": str(values.get("recover_from_members", "false")).lower() == "true",
        },
        properties,
    )
    if "port" in result.data and not session.connected:
        session.locator, session.connected = f"{result.data['connect_to']}[{result.data['port']}]", True
    return result


def start_server(session: Session, values: Values) -> Result:
    properties = _properties(session, values)
    if properties.get("member-timeout"):
        properties.notes.append("property member-timeout: the locators' one holds for all members; ignored")
    options = server_options_in(values, properties.values)
    xml = options.get("cache_xml_file")
    if xml is not None:
        if not given_path(xml).is_file():
            raise ConfigurationError(f"start server: --cache-xml-file={xml}: there is no such file")
        options["cache_xml_file"] = str(given_path(xml).absolute())
    options.setdefault("locators", (session.locator if session.connected else None) or DEFAULT_LOCATOR)
    timeout = _timeout(values)
    if timeout:
        options["join_timeout"] = min(10.0, timeout / 2)  # The member can then still say why it did not join.
    return _start(session, "server", values, options, properties)


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
    check_no_password(properties.of_command_line)
    options["ssl"] = ssl_in(values, properties.values)
    options["security"] = security_in(values, properties.values)
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
    session.use(options.get("ssl"), options.get("security"))
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


def _from_environment(*options: Option) -> tuple[Option, ...]:
    """The options, each with an environment variable of its name: `--bind-address` has PYWAN_BIND_ADDRESS."""
    return tuple(replace(o, variable="PYWAN_" + o.name.upper().replace("-", "_")) for o in options)


COMMANDS = (
    Command(
        "start locator",
        "a locator as a process of its own",
        start_locator,
        _from_environment(
            *START_OPTIONS,
            Option("locators", "the site's locators: host[port], several with commas"),
            Option("bind-address", "where it listens (127.0.0.1)"),
            Option("hostname-for-clients", "the name told to others"),
            Option("port", "where it listens (10334)"),
            Option("distributed-system-id", "the site's id, 0 to 255"),
            Option("remote-locators", "locators of other sites"),
            Option("member-timeout", "milliseconds after which a silent member of the site counts as lost (5000)"),
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
            *SERVER_OPTIONS.values(),
        ),
    ),
)

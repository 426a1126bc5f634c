"""Owns the properties of a member beside the options of its command: --J=-Dgemfire.NAME=VALUE, and files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pywan.base.files import FileError, check_secret, given_path, read_regular
from pywan.cli.encryption import SSL_PROPERTIES
from pywan.cli.identity import PASSWORDS, SECURITY_PROPERTIES
from pywan.config.member_attributes import ServerOptions
from pywan.config.table import table
from pywan.errors import ConfigurationError
from pywan.limitations import Limitation

FILE_NAME = "gemfire.properties"
MAX_FILE_BYTES = 64 * 1024
GEODE_WAIT_TIME = "GatewaySender.MAXIMUM_SHUTDOWN_WAIT_TIME"  # What Geode calls maximum-shutdown-wait-time.

UNDERSTOOD = (
    "name",
    "distributed-system-id",
    "remote-locators",
    "log-level",
    "member-timeout",
    *(row.option for row in table(ServerOptions)),
    *SSL_PROPERTIES,
    *SECURITY_PROPERTIES,
)
# Properties that would be missed if they were ignored: where a command goes by them, or what is sent.
REFUSED = {
    "groups": f"{Limitation.GROUPS.sentence()}, and a command for a group would go to all of them; leave it out, and"
    " name members with --member in commands",
}
# Properties of Geode without a meaning here. Those of security are not among them: ignoring them would be a trap.
IGNORED_PREFIXES = (
    "jmx-",
    "http-",
    "statistic-",
    "archive-",
    "mcast-",
    "udp-",
    "memcached-",
    "redis-",
    "log-",
    "membership-",
)
IGNORED = (
    "conserve-sockets",
    "enable-cluster-configuration",
    "use-cluster-configuration",
    "cluster-configuration-dir",
    "enable-management-rest-service",
    "ack-wait-threshold",
    "start-dev-rest-api",
    "statistics-sampling-enabled",
    "enforce-unique-host",
    "load-cluster-configuration-from-dir",
    "disable-auto-reconnect",
    "deploy-working-dir",
    "locator-wait-time",
    "max-num-reconnect-tries",
    "cache-level",
)


class Properties:
    """The properties of one member. `notes` say in words which properties were given and are not used."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.of_command_line: frozenset[str] = frozenset()  # Names of the properties that --J gave.
        self.notes: list[str] = []

    def add(self, name: str, value: str, source: str, *, is_shown: bool) -> None:
        """Takes a property in, unless one from a stronger source is there.

        `is_shown`: an error may show the name of a property that is not known. It may be a password in the wrong place.
        """
        if name in UNDERSTOOD:
            self.values.setdefault(name, value)
        elif name in REFUSED and value:  # Geode writes properties without a value into its files.
            raise ConfigurationError(f"{source}: property {name}={value:.60} is refused: {REFUSED[name]}")
        elif name in (*IGNORED, *REFUSED) or name.startswith(IGNORED_PREFIXES):
            self.notes.append(f"{source}: property {name} has no meaning here and is ignored")
        else:
            raise ConfigurationError(
                f"{source}: {f'property {name!r}' if is_shown else 'the property'} is not known; understood are"
                f" {', '.join(UNDERSTOOD)}"
            )

    def get(self, name: str) -> str | None:
        return self.values.get(name) or None


def gather(
    java_options: Iterable[str],
    properties_file: str | None,
    directories: Iterable[Path],
    weaker_java_options: Iterable[str] = (),
) -> Properties:
    """From the strongest to the weakest: --J of the command line, PYWAN_J (`weaker_java_options`), --properties-file,
    gemfire.properties in the directories."""
    found = Properties()
    for option in java_options:
        _add_java_option(found, option)
    found.of_command_line = frozenset(found.values)
    for option in weaker_java_options:
        _add_java_option(found, option)
    if properties_file is not None:
        _add_file(found, given_path(properties_file))
    for directory in dict.fromkeys(Path(d).absolute() for d in directories):
        file = directory / FILE_NAME
        if file.is_file():
            _add_file(found, file)
    return found


def _add_java_option(found: Properties, option: str) -> None:
    option = option.strip()
    # Geode's examples have quotes around values with commas, which they escape for the shell.
    while len(option) >= 2 and option[0] == option[-1] and option[0] in "'\"":
        option = option[1:-1].strip()
    option = option.replace(f"-D{GEODE_WAIT_TIME}=", "-Dgemfire.maximum-shutdown-wait-time=").replace(
        f"-Dgemfire.{GEODE_WAIT_TIME}=", "-Dgemfire.maximum-shutdown-wait-time="
    )
    for prefix in ("-Dgemfire.", "-Dgeode."):
        if option.startswith(prefix):
            name, separator, value = option[len(prefix) :].partition("=")
            if not name or not separator:
                raise ConfigurationError("--J (or PYWAN_J): write --J=-Dgemfire.NAME=VALUE")
            found.add(name.strip(), value.strip().strip("'\""), f"--J={prefix}{name.strip()}", is_shown=True)
            return
    if not option.startswith("-"):
        raise ConfigurationError("--J (or PYWAN_J): write --J=-Dgemfire.NAME=VALUE")
    found.notes.append(f"--J={option.partition('=')[0]}: there is no Java machine here; ignored")


def _add_file(found: Properties, path: Path) -> None:
    """Takes in a file. Its errors name the line, and tell nothing of it: the line may be a password."""
    try:
        read = read_regular(path, MAX_FILE_BYTES)
        lines = read.data.decode().splitlines()
        if any(name in PASSWORDS and value for name, value in map(_name_and_value, lines)):
            check_secret(read, path)
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: the properties file is not in UTF-8") from None
    except FileError as error:
        raise ConfigurationError(f"{path}: the properties file {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.strip()[0] in "#!":
            continue
        name, value = _name_and_value(line)
        if not name:
            raise ConfigurationError(f"{path}:{number}: expected name=value, and the line has no name or no =")
        found.add(name, value, f"{path}:{number}", is_shown=False)


def _name_and_value(line: str) -> tuple[str, str]:
    """Returns the two sides of a line. The name is empty if the line has none."""
    line = line.strip()
    at = min((i for i in (line.find("="), line.find(":")) if i > 0), default=0)
    return line[:at].strip().removeprefix("gemfire."), line[at + 1 :].strip()

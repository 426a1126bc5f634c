"""Owns one run of the program: which locator it is connected to, and how a line becomes a result."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pywan.base.names import printable
from pywan.cli import grammar
from pywan.cli.encryption import ssl_of_environment
from pywan.cli.identity import identity_of_environment
from pywan.cli.output import Output, Result
from pywan.errors import (
    ConfigurationError,
    ConnectivityError,
    IllegalStateError,
    NoLocatorError,
    NotFoundError,
    ProtocolError,
    PywanError,
)
from pywan.protocol.members import check_servers

if TYPE_CHECKING:
    from pywan.transport.links import Links

log = logging.getLogger("pywan.cli")

DEFAULT_LOCATOR = "127.0.0.1[10334]"
LOCATOR_TIMEOUT_S = 5.0
MEMBER_TIMEOUT_S = 60.0  # A sender may take long to stop.
MEMBERS_AT_ONCE = 16
MAX_SCRIPTS = 16  # So many files may run each other.


class Session:
    """Runs commands one after another. `locator` is the one that commands ask. Without one, they try the default
    locator."""

    def __init__(self, commands: Iterable[grammar.Command], output: Output, locator: str | None = None) -> None:
        self.commands = tuple(commands)
        self.output = output
        self.locator = locator
        self.connected = locator is not None
        self.done = False
        self.help_command = "help"  # What a person types for help.
        self._scripts: dict[tuple[int, int], str] = {}  # Files that run now, the outermost first.
        # How others are asked, and who this is to them, if not as the environment says.
        self._ssl: dict[str, Any] | None = None
        self._security: dict[str, Any] | None = None
        self._links: Links | None = None
        self._asked = False  # Whether this command has an answer of another process.

    # --- lines ---

    def run(self, words: list[str], shown_as: str | None = None) -> bool:
        """Runs one command, shows its result, and says whether it worked."""
        name = shown_as or " ".join(words[: grammar.first_option(words)])
        self._asked = False
        try:
            if "--help" in words or "-h" in words:
                words = ["help", *(word for word in words if not word.startswith("-"))]
            command, values = grammar.parse(words, self.commands)
            name = command.name
            result = command.handler(self, values)
        except grammar.GrammarError as error:
            result = self._usage_error(error)
        except PywanError as error:
            result = Result(errors=[str(error)])
        except OSError as error:  # The system does not take a path.
            result = Result(errors=[f"{name}: {printable(str(error))}"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if not self._asked:
                raise
            # The handler reads the answer of another process. An answer of another version of pywan, or of another
            # program, may lack what the handler looks for.
            log.debug("%s: the answer could not be read", name, exc_info=True)
            result = Result(
                errors=[
                    f"{name}: what was answered cannot be read ({type(error).__name__}: {error});"
                    " is what answers of this version of pywan?"
                ]
            )
        self.output.show(name, result)
        self.done = self.done or result.exit
        return bool(result.ok)

    def run_line(self, line: str) -> bool:
        """Runs a line of one or several commands. After one that failed, the rest does not run."""
        try:
            commands = grammar.split_lines(line)
        except grammar.GrammarError as error:
            self.output.show(line.strip(), self._usage_error(error))
            return False
        for _, text in commands:
            try:
                words = grammar.tokenize(text)
            except grammar.GrammarError as error:
                self.output.show(text, self._usage_error(error))
                return False
            if not self.run(words):
                return False
            if self.done:
                break
        return True

    def _usage_error(self, error: grammar.GrammarError) -> Result:
        """A result of two lines: what is wrong, and how to get help."""
        return Result(errors=[str(error)], hint=" ".join(filter(None, (self.help_command, error.topic))))

    @contextlib.contextmanager
    def script(self, identity: tuple[int, int], path: str) -> Iterator[None]:
        """Keeps note of a file while its commands run. ConfigurationError if the file runs already: it would never
        end."""
        if identity in self._scripts:
            raise ConfigurationError(
                f"run: {path} runs itself, by way of {' -> '.join([*self._scripts.values(), path])};"
                " its own `run` is refused"
            )
        if len(self._scripts) >= MAX_SCRIPTS:
            raise ConfigurationError(
                f"run: {path} would be file number {MAX_SCRIPTS + 1} of files that run each other;"
                f" at most {MAX_SCRIPTS} may"
            )
        self._scripts[identity] = path
        try:
            yield
        finally:
            del self._scripts[identity]

    # --- the site ---

    def connect(self, locator: str) -> dict[str, Any]:
        """Makes `locator` the one that is asked; it must answer."""
        from pywan.base.addresses import parse_locators

        problems = []
        for address in parse_locators(locator):
            try:
                status = self._ask_locator(str(address), "status")
            except PywanError as error:
                problems.append(str(error))
                continue
            if status.get("type") != "locator":
                problems.append(f"what answers at {address} is no locator")
                continue
            self.locator, self.connected = str(address), True
            return status
        raise NoLocatorError("; ".join(problems) or "no locator is named; give --locator=host[port]")

    @property
    def links(self) -> Links:
        """How this program meets locators and members."""
        if self._links is None:
            self._links = self.make_links()
        return self._links

    def make_links(self) -> Links:
        """Makes them as the last `connect` or `start` said, or else the environment. They go by the files of now."""
        from pywan.config.security_attributes import security_of
        from pywan.security.configured import identity_of
        from pywan.transport.links import Links

        ssl = self._ssl if self._ssl is not None else ssl_of_environment()
        security = self._security if self._security is not None else identity_of_environment()
        return Links(ssl, identity=identity_of(security_of(security)))

    def use(self, ssl: dict[str, Any] | None, security: dict[str, Any] | None) -> None:
        """Encrypts connections in that way from now on, and is that user to others. None: it stays as it is."""
        if ssl is not None:
            self._ssl, self._links = ssl, None
        if security is not None:
            self._security, self._links = security, None

    def disconnect(self) -> None:
        if not self.connected:
            raise IllegalStateError("not connected to a locator")
        self.locator, self.connected = None, False

    def ask_locator(self, op: str, **fields: Any) -> dict[str, Any]:
        if self.locator is None:
            try:
                self.connect(DEFAULT_LOCATOR)
            except PywanError as error:
                raise NoLocatorError(f"not connected, and {error}; use `connect --locator=host[port]`") from None
        assert self.locator is not None
        return self._ask_locator(self.locator, op, **fields)

    def ask_coordinator(self, op: str, **fields: Any) -> dict[str, Any]:
        """Asks the locator, and the one that coordinates the site if the first names another one."""
        from pywan.base.addresses import parse_address
        from pywan.transport.control import call_once

        answer = self.ask_locator(op, **fields)
        if not answer["decides"] and answer.get("address"):
            answer = call_once(parse_address(answer["address"]), op, way=self.links.locator, **fields)
        return answer

    def _ask_locator(self, locator: str, op: str, **fields: Any) -> dict[str, Any]:
        from pywan.base.addresses import parse_address
        from pywan.transport.control import call_once

        self._asked = True
        try:
            return call_once(parse_address(locator), op, timeout=LOCATOR_TIMEOUT_S, way=self.links.locator, **fields)
        except (ConnectivityError, ProtocolError, NotFoundError) as error:
            # The port may be that of a server, which has no such operation, or of a program with another protocol.
            raise NoLocatorError(f"no locator at {locator}: {error}") from None

    def members(self, wanted: str | None = None, *, may_be_none: bool = False) -> list[dict[str, Any]]:
        """The site's servers, or those named in `wanted`. NotFoundError if there is none, but not if there
        `may_be_none`."""
        members = check_servers(self.ask_locator("servers"))
        if wanted:
            names = [name.strip() for name in wanted.split(",") if name.strip()]
            unknown = [name for name in names if name not in {m["name"] for m in members}]
            if unknown:
                raise NotFoundError(
                    f"member {unknown[0]!r} is not in the site of {self.locator}; members there:"
                    f" {', '.join(m['name'] for m in members) or 'none'}"
                )
            members = [m for m in members if m["name"] in names]
        if not members and not may_be_none:
            raise NotFoundError(f"no members in the site of {self.locator}; start a server first")
        return members

    def ask_members(
        self,
        op: str,
        fields: dict[str, Any],
        wanted: str | None = None,
        *,
        timeout: float = MEMBER_TIMEOUT_S,
        progress: Callable[[dict[str, Any]], None] | None = None,
        may_be_none: bool = False,
    ) -> list[dict[str, Any]]:
        """Every member's answer: its reply with `ok` true, or `ok` false and `error`. `progress` is given each reply
        that a member sends before its last one."""
        members = self.members(wanted, may_be_none=may_be_none)
        if not members:
            return []
        with ThreadPoolExecutor(min(MEMBERS_AT_ONCE, len(members))) as pool:
            return list(
                pool.map(
                    lambda member: self.ask_member(member, op, fields, timeout=timeout, progress=progress), members
                )
            )

    def ask_member(
        self,
        member: dict[str, Any],
        op: str,
        fields: dict[str, Any],
        *,
        timeout: float = MEMBER_TIMEOUT_S,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        from pywan.transport.control import call_once

        try:
            address, way = (member["host"], member["port"]), self.links.cluster
            reply = call_once(address, op, timeout=timeout, way=way, _progress=progress, **fields)
            return {**reply, "member": member["name"], "ok": True}
        except PywanError as error:
            return {"member": member["name"], "ok": False, "error": str(error), "kind": type(error).__name__}

    def change_configuration(self, **change: Any) -> dict[str, Any]:
        """Changes the cluster configuration: what the site wants its members to have, and what they start by."""
        return self.ask_locator("change-configuration", **change)

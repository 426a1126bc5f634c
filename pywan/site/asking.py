"""Owns a member's connections to the coordinator of its site, and the search for the locator that it is in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection
from typing import Any

from pywan.base import versions
from pywan.base.addresses import Address, parse_locators
from pywan.base.names import is_name, printable, quoted
from pywan.errors import (
    ConfigurationError,
    ConnectivityError,
    IncompatibleSystemError,
    NotFoundError,
    ProtocolError,
    PywanError,
)
from pywan.transport.control import ControlClient, call_once
from pywan.transport.links import PLAIN, Way

CALL_TIMEOUT_S = 3.0
GOODBYE_TIMEOUT_S = 1.0  # A member that ends waits so long for the standby.
PROBLEM_CHARACTERS = 1_000  # Of what a locator says why it decides nothing, so many are shown.
LED_MAX = 4  # Locators beyond its own to which a member lets itself be led for one question.


class CoordinatorClient:
    """Any thread may use it. A question is asked once: the agent repeats it.

    Args:
        name: The member's name.
        site: The site's id.
        locators: Returns the addresses of the site's locators.
        way: Connects to locators.
    """

    def __init__(self, name: str, site: int, locators: Callable[[], list[Address]], way: Way = PLAIN.locator) -> None:
        self._name, self._site, self._locators, self._way = name, site, locators, way
        self._lock = threading.Lock()  # Guards everything below.
        self._address: Address | None = None
        # By use: news and requests, so that no request waits for news; and who an address is that a locator has told.
        self._clients: dict[str, ControlClient] = {}
        self._closed = False

    @property
    def address(self) -> Address | None:
        """Where the coordinator answered last. None: no locator coordinated when it was searched last."""
        with self._lock:
            return self._address

    def close(self) -> None:
        """Ends what is under way, and refuses what follows."""
        with self._lock:
            self._closed = True
            clients = list(self._clients.values())
        for client in clients:
            client.close()

    def tell(self, address: Address, op: str, **fields: Any) -> dict[str, Any]:
        """Sends requests to the coordinator where it was. ConnectivityError: it does not answer."""
        return self._call("asks", address, op, fields)

    def tell_standby(self, address: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Tells the standby that the coordinator is not heard. If it coordinates now, it is asked first from now on.
        ConnectivityError: it does not answer."""
        try:
            where = parse_locators(address)[0]
        except (ConfigurationError, IndexError):
            raise ConnectivityError(f"the standby has no address that can be used: {quoted(address)}") from None
        reply = self._call("standby", where, "coordination-standby", fields)
        if reply.get("leads") is True:
            self._found(where)
        return reply

    def say_goodbye(self, address: str, fields: dict[str, Any]) -> None:
        """Tells the standby that the member has ended, after `close`. It is told once: an operator can say it too."""
        with contextlib.suppress(PywanError, IndexError):
            where = parse_locators(address)[0]
            call_once(
                where,
                "coordination-standby",
                timeout=GOODBYE_TIMEOUT_S,
                way=self._way,
                version=versions.VERSION,
                **fields,
            )

    def ask(
        self,
        op: str,
        identity: str,
        foreign: Collection[str],
        fields: dict[str, Any],
        term: int = 0,
        on_standby: Callable[[str, Any], object] = lambda address, at: None,
    ) -> dict[str, Any]:
        """Asks the coordinator for news, wherever it is. ConnectivityError says why no locator coordinates;
        IncompatibleSystemError, that one speaks a version that does not go with the member's.

        Args:
            op: What is asked.
            identity: The identity of the member's site. Empty: the member does not know it yet.
            foreign: Locators of another site. They are asked only if all are: then one says why it does not take the
                member in.
            term: The latest term of which the member has heard. A coordinator of an earlier one counts as none.
            fields: Of the question. The coordinator alone gets them: the member's nonce is among them.
            on_standby: Called with the address of a locator that says that it is the standby, and what it says beside.
                ProtocolError: that cannot be used.
        """
        known = list(dict.fromkeys([*filter(None, [self.address]), *self._locators()]))
        addresses = [each for each in known if str(each) not in foreign] or known
        reasons: list[str] = []
        incompatible: IncompatibleSystemError | None = None
        for address in addresses:  # It gets longer: a locator may name another one.
            try:
                reply = self._call("news", address, op, fields)
                if reply.get("decides") is not True and "standby_at" in reply:
                    on_standby(str(address), reply["standby_at"])
            except NotFoundError:
                reasons.append(f"locator {address} is of a version without a coordinator")
                continue
            except (ConnectivityError, ProtocolError) as error:
                reasons.append(str(error))
                continue
            except IncompatibleSystemError as error:
                incompatible = error
                continue
            told_term = reply.get("term", 0)
            if reply.get("decides") is True and type(told_term) is int and told_term < term:
                reasons.append(f"locator {address} coordinates in a term that is over: another locator has taken over")
                continue
            if reply.get("decides") is True:
                self._found(address)
                return reply
            reasons.append(_why_not(address, reply))
            there = _address_in(reply)
            if there is None or there in addresses or str(there) in foreign or len(addresses) >= len(known) + LED_MAX:
                continue
            if self._coordinates_at(there, reply.get("coordinator"), identity):
                addresses.append(there)
            else:
                reasons.append(f"nothing answers at {there} as the coordinator of this site")
        self._found(None)
        if incompatible is not None:
            raise incompatible
        raise ConnectivityError("; ".join(reasons) or "no locator is known")

    def _coordinates_at(self, address: Address, coordinator: Any, identity: str) -> bool:
        """Whether what answers at an address that a locator has told says that it is that coordinator, of this site."""
        try:
            claim = self._client("who", address).call("coordination-who")
        except PywanError:
            return False
        is_of_site = claim.get("site") == self._site and identity in ("", claim.get("site_identity"))
        return is_of_site and bool(coordinator) and claim.get("locator") == claim.get("coordinator") == coordinator

    def _found(self, address: Address | None) -> None:
        with self._lock:
            self._address = address

    def _call(self, use: str, address: Address, op: str, fields: dict[str, Any]) -> dict[str, Any]:
        """IncompatibleSystemError: one of both ends speaks a version that does not go with that of the other one."""
        reply = self._client(use, address).call(op, version=versions.VERSION, **fields)
        versions.agreed(reply.get("version"), f"locator {address}", f"member {self._name}")
        return reply

    def _client(self, use: str, address: Address) -> ControlClient:
        """Returns the client for that use, connected to that address when it is used."""
        with self._lock:
            if self._closed:
                raise ConnectivityError(f"member {self._name} is leaving its site")
            client = self._clients.get(use)
            if client is None or client.address != address:
                if client is not None:
                    client.close()
                client = self._clients[use] = ControlClient(address, CALL_TIMEOUT_S, what="locator", way=self._way)
            return client


def _why_not(address: Address, reply: dict[str, Any]) -> str:
    problem, coordinator = reply.get("problem"), reply.get("coordinator")
    if problem:
        return f"locator {address} decides nothing: {printable(str(problem)[:PROBLEM_CHARACTERS])}"
    if coordinator:
        named = coordinator if is_name(coordinator) else quoted(coordinator)
        return f"locator {address} names {named} as the coordinator"
    return f"locator {address} does not know yet who coordinates"


def _address_in(reply: dict[str, Any]) -> Address | None:
    """Returns the address at which the coordinator is, as a locator says. None: it says none, or what is none."""
    told = reply.get("address")
    if not told or not isinstance(told, str):
        return None
    try:
        addresses = parse_locators(told)
    except ConfigurationError:
        return None
    return addresses[0] if len(addresses) == 1 else None

"""Owns a member's connections to the coordinator of its site, and the search for the coordinating locator."""

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
GOODBYE_TIMEOUT_S = 1.0  # The time for which an ending member waits for the standby.
PROBLEM_CHARACTERS = 1_000  # The limit for a locator's reason to refuse requests.
LED_MAX = 4  # Limit per question: locators named by locators, beyond the configured ones.


class CoordinatorClient:
    """Any thread may use the client. Each question is asked once: the agent repeats questions.

    Args:
        name: The member's name.
        site: The site's id.
        locators: Returns the addresses of the site's locators.
        way: Connects to locators.
    """

    def __init__(self, name: str, site: int, locators: Callable[[], list[Address]], way: Way = PLAIN.locator) -> None:
        self._name, self._site, self._locators, self._way = name, site, locators, way
        self._lock = threading.Lock()  # Guards all fields below.
        self._address: Address | None = None
        # By use: "news" and "asks", so that no request waits for news; "standby"; and "who", for checks of a named
        # coordinator.
        self._clients: dict[str, ControlClient] = {}
        self._closed = False

    @property
    def address(self) -> Address | None:
        """The address of the coordinator's last answer. None: the last search found no coordinator."""
        with self._lock:
            return self._address

    def close(self) -> None:
        """Aborts requests in flight, and refuses later requests."""
        with self._lock:
            self._closed = True
            clients = list(self._clients.values())
        for client in clients:
            client.close()

    def tell(self, address: Address, op: str, **fields: Any) -> dict[str, Any]:
        """Sends requests to the last address of the coordinator. ConnectivityError: the coordinator does not answer."""
        return self._call("asks", address, op, fields)

    def tell_standby(self, address: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Tells the standby that the coordinator is unreachable. If the standby coordinates now, later polls go to the
        standby first. ConnectivityError: the standby does not answer."""
        try:
            where = parse_locators(address)[0]
        except (ConfigurationError, IndexError):
            raise ConnectivityError(f"the standby has no address that can be used: {quoted(address)}") from None
        reply = self._call("standby", where, "coordination-standby", fields)
        if reply.get("leads") is True:
            self._found(where)
        return reply

    def say_goodbye(self, address: str, fields: dict[str, Any]) -> None:
        """Tells the standby that the member has ended, after `close`. The message is sent once: an operator can send it
        too."""
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
        """Polls the coordinator at any locator. ConnectivityError has the reason why no locator coordinates;
        IncompatibleSystemError: a locator has a protocol version incompatible with the member's.

        Args:
            op: The name of the request.
            identity: The identity of the member's site. Empty: the member does not know the identity yet.
            foreign: Locators of a different site. The member asks these only if all locators are foreign: the answer
                then has the reason to refuse the member.
            term: The latest term known to the member. A coordinator of an earlier term is ignored.
            fields: The fields of the request. Only the coordinator gets the fields: the member's nonce is among them.
            on_standby: Called with the address and the `standby_at` of a locator that claims to be the standby.
                ProtocolError: the value cannot be used.
        """
        known = list(dict.fromkeys([*filter(None, [self.address]), *self._locators()]))
        addresses = [each for each in known if str(each) not in foreign] or known
        reasons: list[str] = []
        incompatible: IncompatibleSystemError | None = None
        for address in addresses:  # The list grows: a locator may name a further locator.
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
        """Whether the process at a named address claims to be the named coordinator of this site."""
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
        """Raises IncompatibleSystemError if the protocol versions of the two ends are incompatible."""
        reply = self._client(use, address).call(op, version=versions.VERSION, **fields)
        versions.agreed(reply.get("version"), f"locator {address}", f"member {self._name}")
        return reply

    def _client(self, use: str, address: Address) -> ControlClient:
        """Returns the client for the use. The client connects to the address at the first call."""
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
    """Returns the coordinator's address in a locator's answer. None: no address, or an invalid one."""
    told = reply.get("address")
    if not told or not isinstance(told, str):
        return None
    try:
        addresses = parse_locators(told)
    except ConfigurationError:
        return None
    return addresses[0] if len(addresses) == 1 else None

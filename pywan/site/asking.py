"""Owns a member's connections to the coordinator of its site, and the search for the locator that it is in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from pywan.base.addresses import Address, parse_locators
from pywan.errors import ConnectivityError, NotFoundError
from pywan.transport.control import ControlClient

CALL_TIMEOUT_S = 3.0


class CoordinatorClient:
    """Any thread may use it. A question is asked once: the agent repeats it.

    Args:
        name: The member's name.
        locators: Returns the addresses of the site's locators.
    """

    def __init__(self, name: str, locators: Callable[[], list[Address]]) -> None:
        self._name, self._locators = name, locators
        self._lock = threading.Lock()  # Guards everything below.
        self._address: Address | None = None
        self._clients: dict[str, ControlClient] = {}  # By use: news and requests, so that no request waits for news.
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
        return self._client("asks", address).call(op, **fields)

    def ask(self, op: str, foreign: Collection[str], **fields: Any) -> dict[str, Any]:
        """Asks the coordinator for news, wherever it is. ConnectivityError says why no locator coordinates.

        `foreign`: locators of another site. They are asked only if all are: then one says why it does not take the
        member in.
        """
        known = list(dict.fromkeys([*filter(None, [self.address]), *self._locators()]))
        addresses = [each for each in known if str(each) not in foreign] or known
        reasons: list[str] = []
        for address in addresses:  # It gets longer: a locator may name another one.
            try:
                reply = self._client("news", address).call(op, **fields)
            except NotFoundError:
                reasons.append(f"locator {address} is of a version without a coordinator")
                continue
            except ConnectivityError as error:
                reasons.append(str(error))
                continue
            if reply.get("decides") is True:
                self._found(address)
                return reply
            reasons.append(_why_not(address, reply))
            there = reply.get("address")
            if there and isinstance(there, str):
                addresses += [each for each in parse_locators(there) if each not in addresses]
        self._found(None)
        raise ConnectivityError("; ".join(reasons) or "no locator is known")

    def _found(self, address: Address | None) -> None:
        with self._lock:
            self._address = address

    def _client(self, use: str, address: Address) -> ControlClient:
        """Returns the client for that use, connected to that address when it is used."""
        with self._lock:
            if self._closed:
                raise ConnectivityError(f"member {self._name} is leaving its site")
            client = self._clients.get(use)
            if client is None or client.address != address:
                if client is not None:
                    client.close()
                client = self._clients[use] = ControlClient(address, CALL_TIMEOUT_S, what="locator")
            return client


def _why_not(address: Address, reply: dict[str, Any]) -> str:
    if reply.get("problem"):
        return f"locator {address} decides nothing: {reply['problem']}"
    if reply.get("coordinator"):
        return f"locator {address} names {reply['coordinator']} as the coordinator"
    return f"locator {address} does not know yet who coordinates"

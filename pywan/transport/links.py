"""Owns how a process meets others: over which connections it speaks TLS, and which it demands TLS of.

A `Links` is made once for a member, a locator, a command line or a client, and given to all who connect or listen.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pywan.base.addresses import Address
from pywan.base.files import file_state
from pywan.config.ssl_attributes import CLUSTER, GATEWAY, LOCATOR, SERVER, SslAttributes, ssl_of
from pywan.errors import ConfigurationError, ConnectivityError, ProtocolError
from pywan.protocol import between_members, control, gateway
from pywan.security.identity import NOBODY, Identity
from pywan.security.manager import Credentials
from pywan.transport import sockets
from pywan.transport.contexts import Contexts, make_contexts
from pywan.transport.link import Link
from pywan.transport.tls_words import handshake_in_words

if TYPE_CHECKING:
    from pywan.security.members_secret import MembersSecret
    from pywan.transport.openings import Connection

log = logging.getLogger("pywan.tls")

LOOK_S = 3.0  # So often at most the files are looked at.
SAY_S = 86_400.0  # So often a line says that a certificate ends soon.
FIRST_BYTES = 4  # So many bytes tell the protocols apart.
STREAM = "TLS in memory"  # How bytes are encrypted: the only way that there is (docs/decisions/0096).
LINGER_S = 1.0  # So long the other end has to take the reason why it is refused, before the connection is reset.
_HANDSHAKE = b"\x16"  # The first byte of TLS.
_REFUSED = "this port speaks TLS only; name its component in ssl-enabled-components"

# The component of each protocol, by its first bytes, at each kind of port.
LOCATOR_PORT: Mapping[bytes, str] = {control.MAGIC: LOCATOR}
MEMBER_PORT: Mapping[bytes, str] = {
    control.MAGIC: CLUSTER,
    between_members.REPLICATION: CLUSTER,
    between_members.CALLS: CLUSTER,
    gateway.MAGIC: SERVER,
}
RECEIVER_PORT: Mapping[bytes, str] = {gateway.MAGIC: GATEWAY}


class Links:
    """Any thread may use it.

    Args:
        given: The options. None: nothing is encrypted.
        listener: Who listens by it, for errors. "": nobody does.
        identity: What the process shows of itself to members and locators of its own site.
        gateway_identity: What it shows to other sites. They never see the other one.
        secret: What members and locators of the own site prove to each other. None: they prove nothing.

    Raises:
        ConfigurationError: An option or a file cannot be used.
    """

    def __init__(
        self,
        given: SslAttributes | Mapping[str, Any] | None = None,
        *,
        listener: str = "",
        identity: Identity = NOBODY,
        gateway_identity: Identity = NOBODY,
        secret: MembersSecret | None = None,
    ) -> None:
        self.identity, self.gateway_identity, self._secret = identity, gateway_identity, secret
        self.attributes = given if isinstance(given, SslAttributes) else ssl_of(given)
        self._components = frozenset(self.attributes.enabled_components)
        if listener:
            self.attributes.check_listens(listener)
        self._lock = threading.Lock()  # Guards all below. Files are read outside of it.
        self._contexts: Contexts | None = None
        self._seen: tuple[object, ...] = ()  # The state of the files that were read.
        self._looked_s = self._said_s = float("-inf")
        if self._components:
            self.reload()

    # Who speaks TLS

    def way(self, component: str) -> Way:
        """Returns what connects to that component of other processes of the own site."""
        return Way(self, component, self.identity, self._secret if component in (CLUSTER, LOCATOR) else None)

    @property
    def cluster(self) -> Way:
        """What connects to members of the own site."""
        return self.way(CLUSTER)

    @property
    def locator(self) -> Way:
        """What connects to locators of the own site."""
        return self.way(LOCATOR)

    @property
    def remote_locator(self) -> Way:
        """What connects to locators that are, or may be, of another site."""
        return Way(self, LOCATOR, self.gateway_identity)

    @property
    def gateway(self) -> Way:
        """What connects to receivers of other sites."""
        return Way(self, GATEWAY, self.gateway_identity)

    @property
    def server(self) -> Way:
        """What connects to members as a client."""
        return self.way(SERVER)

    def is_encrypted(self, component: str) -> bool:
        """Returns whether connections to that component speak TLS."""
        return component in self._components

    # The files

    def contexts(self) -> Contexts:
        """Returns what shakes hands now. Files that have changed are read again; bad ones leave all as it was."""
        now_s = time.monotonic()
        with self._lock:
            is_due = now_s - self._looked_s >= LOOK_S
            if is_due:
                self._looked_s = now_s
            seen = self._seen
        if is_due and self._state() != seen:
            try:
                self.reload()
            except ConfigurationError as error:
                log.error("certificates have changed and are not taken, the ones before stay: %s", error)
        self._say_endings(now_s)
        with self._lock:
            assert self._contexts is not None
            return self._contexts

    def reload(self) -> list[str]:
        """Reads the files again. Connections that are made from now on go by them. Returns the files.

        ConfigurationError says what cannot be used. All stays as it was, then.
        """
        if not self._components:
            return []
        state = self._state()
        with self._lock:
            self._seen = state  # Bad files are not tried again before they change.
            is_first = self._contexts is None
        made = make_contexts(self.attributes)
        with self._lock:
            self._contexts = made
            self._said_s = float("-inf")
        if not is_first:
            log.info("certificates were read again: %s", ", ".join(self.attributes.files))
        return list(self.attributes.files)

    def reload_or_say(self) -> None:
        """Reads the files again. What is wrong is only logged."""
        try:
            self.reload()
        except ConfigurationError as error:
            log.error("certificates are not taken, the ones before stay: %s", error)

    def endings(self) -> list[str]:
        """Returns which certificates end soon, in words."""
        if not self._components:
            return []
        now_s = time.time()
        return [said for said in (each.said(now_s) for each in self.contexts().endings) if said]

    def status(self) -> dict[str, Any]:
        """Returns what is encrypted, how, and what is to be said of certificates, as plain values."""
        return {
            "components": sorted(self._components),
            "stream": STREAM if self._components else "",
            "certificates": self.endings(),
        }

    def _state(self) -> tuple[object, ...]:
        return tuple(map(file_state, self.attributes.files))

    def _say_endings(self, now_s: float) -> None:
        with self._lock:
            if now_s - self._said_s < SAY_S or self._contexts is None:
                return
            self._said_s, endings = now_s, self._contexts.endings
        for each in endings:
            said = each.said(time.time())
            if said:
                log.warning("%s; renew it: files that change are read again without a restart", said)


class Way:
    """Connects to one component of other processes.

    Args:
        links: Of the process.
        component: What speaks TLS, or does not.
        identity: What the process shows of itself there.
        secret: What both ends prove to each other instead. None: they prove nothing.
    """

    def __init__(self, links: Links, component: str, identity: Identity, secret: MembersSecret | None = None) -> None:
        self._links, self.component, self.identity, self.secret = links, component, identity, secret

    def shown_over(self, sock: Link, to: str, identity: Identity | None = None) -> Credentials | None:
        """Returns what a connection to `to` is to carry of `identity` (None: that of this way). None: nothing.

        AuthenticationError: it must not carry it, or there is no password.
        """
        return (identity or self.identity).shown_over(sock.tls is not None, to)

    def connect(
        self,
        address: Address | tuple[str, int],
        timeout: float,
        *,
        what: str = "",
        on_socket: Callable[[Link], None] | None = None,
    ) -> Link:
        """Returns a connection that is ready for the first byte of a protocol. See `sockets.connect`.

        ConnectivityError says which end refuses the handshake, and why.
        """
        deadline = time.monotonic() + timeout
        sock = sockets.connect(address, timeout, what=what, on_socket=on_socket)
        if not self._links.is_encrypted(self.component):
            return sock
        try:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock.encrypt(self._links.contexts().client, address[0].partition("%")[0])
            assert sock.tls is not None
            sock.bound_to = sock.tls.object.getpeercert(True) or b""
            sock.settimeout(timeout)
        except (OSError, ValueError) as error:
            sock.close()
            place = f"{what} {address[0]}[{address[1]}]".strip()
            raise ConnectivityError(f"cannot connect to {place}: {handshake_in_words(error)}") from None
        except BaseException:
            sock.close()
            raise
        return sock


class Gate:
    """Takes in the connections of a port: those that speak TLS shake hands, and those that have to and do not are
    refused.

    Args:
        links: Of the process.
        protocols: The component of each protocol, by its first bytes.
    """

    def __init__(self, links: Links, protocols: Mapping[bytes, str]) -> None:
        self._links = links
        self._encrypted = {first for first, component in protocols.items() if links.is_encrypted(component)}
        self._is_all_encrypted = self._encrypted == set(protocols)

    def first_bytes(self, connection: Connection) -> bytes:
        """Returns the bytes that tell the protocol. Empty: the connection ended before it sent any.

        Bytes of strangers are not looked at before the handshake is done. ConnectivityError: it failed, or there has
        to be one.
        """
        first = _first_bytes(connection)
        if not self._encrypted or not first:
            return first
        if first[:1] == _HANDSHAKE:
            self._shake_hands(connection, first)
            return _first_bytes(connection)
        if first in self._encrypted:
            _tell_refusal(connection, first)
        elif not self._is_all_encrypted:
            return first
        sockets.shut(connection.sock)  # Nothing else is said.
        raise ConnectivityError("it does not speak TLS, and this port demands it")

    def _shake_hands(self, connection: Connection, first: bytes) -> None:
        sock = connection.sock
        contexts = self._links.contexts()
        context = contexts.server
        assert context is not None, "SslAttributes.check_listens refuses that"
        sock.settimeout(connection.time_left())
        try:
            sock.encrypt(context, None, first)
            sock.bound_to = contexts.own
        except OSError as error:
            if isinstance(error, ssl.SSLError):
                _linger(connection)
            sockets.shut(sock)  # Nothing else is said.
            raise ConnectivityError(
                "it closed the connection during the TLS handshake"
                if isinstance(error, ConnectionError)
                else handshake_in_words(error)
            ) from None


def _first_bytes(connection: Connection) -> bytes:
    first = b""
    while len(first) < FIRST_BYTES:
        connection.sock.settimeout(connection.time_left())
        data = connection.sock.recv(FIRST_BYTES - len(first))
        if not data:
            if first and not connection.given_up:
                raise ProtocolError(f"it ended after {len(first)} bytes: {control.describe(first)}")
            return b""
        first += data
    return first


def _tell_refusal(connection: Connection, first: bytes) -> None:
    """Tells who speaks plainly why it is refused, in its protocol."""
    sock, reason = connection.sock, ConnectivityError(_REFUSED)
    with contextlib.suppress(OSError):
        sock.settimeout(min(LINGER_S, connection.time_left()))
        if first == control.MAGIC:
            head = first
            while len(head) < control.HEADER.size:
                data = sock.recv(control.HEADER.size - len(head))
                if not data:
                    return
                head += data
            request_id = control.HEADER.unpack(head)[3]
            sock.sendall(control.encode(request_id, control.error_reply(reason)))
        elif first == gateway.MAGIC:
            sock.sendall(gateway.encode_error(reason))
        else:
            sock.sendall(between_members.encode_answer(first, _REFUSED))
    _linger(connection)


def _linger(connection: Connection) -> None:
    """Gives the other end time to take what was said last. Its bytes would reset the connection otherwise."""
    sock = connection.sock
    deadline = time.monotonic() + min(LINGER_S, connection.time_left())
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while (left_s := deadline - time.monotonic()) > 0:
            sock.settimeout(left_s)
            if not sock.recv(1 << 16):
                return


PLAIN = Links()  # Encrypts nothing.
OPEN_GATE = Gate(PLAIN, {})  # Lets all in.

__all__ = ["LOCATOR_PORT", "MEMBER_PORT", "OPEN_GATE", "PLAIN", "RECEIVER_PORT", "Gate", "Links", "Way"]

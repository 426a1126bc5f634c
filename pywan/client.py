"""Owns a client's connection to a member: the rows of one task are sent in bulk and applied together.

Spark's executors import this module, so it imports only what that needs.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pywan import _core
from pywan.base.addresses import parse_locators
from pywan.config.security_attributes import security_of
from pywan.errors import ConnectivityError, DiskError, NoLocatorError, PywanError, RegionNotFoundError
from pywan.forks import of_one_process
from pywan.protocol import gateway
from pywan.protocol.gateway import ClientHello, Committed, Welcome, encode
from pywan.protocol.members import check_having, check_servers
from pywan.security.configured import identity_of
from pywan.transport import data
from pywan.transport.control import call_once
from pywan.transport.links import Links


@of_one_process(lambda connection: f"the connection to the member at {connection.place}", nothing_in_child=("close",))
class DataConnection:
    """The connection over which the rows of one task go to a member of a site. Only one thread may use it.

    The member stages the rows. It applies none of them before `commit`. Rows with the same (run_id, task) are applied
    once, in whatever order they come. A connection that is closed without `commit` drops its rows. It is a context
    manager, which closes the connection.

    Attributes:
        place: `host:port` of the member.
        region: The name of the region.
    """

    def __init__(self, sock: socket.socket, place: str, region: str, timeout: float) -> None:
        self._sock = sock
        self._sender = _core.RowSender(sock, timeout_s=timeout)
        self.place = place
        self.region = region

    @classmethod
    def open(
        cls,
        locators: str,
        *,
        region: str,
        run_id: bytes,
        task: int,
        timeout: float = 60.0,
        ssl: Mapping[str, Any] | None = None,
        security: Mapping[str, Any] | None = None,
    ) -> DataConnection:
        """Asks the locators for the site's members, and connects to one that has the region.

        Members that the locator knows to have it come first. A member that has no such region, or cannot be reached,
        is passed over: nothing was sent to it.

        Args:
            locators: The site's locators, as `host[port],host[port]`.
            region: The name of the region.
            run_id: 16 bytes that tell this run of the job from all others.
            task: The number of the task in the run.
            timeout: The limit in seconds for this call, and later for each answer of the member.
            ssl: How connections are encrypted, by the names in docs/configuration.md. None: they are not.
            security: Who the client is, by the names in docs/configuration.md:
                `{"username": ..., "password_file": ...}`. None: it does not say.

        Returns:
            The connection.

        Raises:
            NoLocatorError: No locator answers, or none knows a member.
            ConnectivityError: No member can be reached.
            RegionNotFoundError: No member of the site has such a region.
            IllegalStateError: Several members have the region: it takes no rows of clients.
            ConfigurationError: An option or a file of `ssl`, or an option of `security`, cannot be used.
            AuthenticationError: The locator or the member does not know who this is, or must not be told.
            NotAuthorizedError: It knows, and does not let them write into the region.
            PywanError: The member refuses the connection for another reason.
        """
        deadline = time.monotonic() + timeout
        region = region.strip("/")
        links = Links(ssl, identity=identity_of(security_of(security)))
        members = _members(locators, region, deadline, links)
        without: list[str] = []
        trouble = ""
        for member in members:
            try:
                sock = _opened(member, ClientHello(region, run_id, task), links, timeout, deadline)
            except RegionNotFoundError:
                without.append(member["name"])
            except ConnectivityError as error:
                trouble = str(error)
            else:
                return cls(sock, f"{member['host']}:{member['port']}", region, timeout)
        no_region = f"region {region!r} is not on member {', '.join(sorted(without))}"
        if without and not trouble:
            raise RegionNotFoundError(f"{no_region}, and there are no others; create it first; nothing was sent")
        also = f"; {no_region}" if without else ""
        raise ConnectivityError(
            f"no member of the site behind {locators} can be reached: {trouble or 'none is registered there'}{also};"
            " nothing was sent"
        )

    def put_columns(self, keys: Any, values: Any, operations: Any = None) -> None:
        """Sends one row for each key, from columns. See `Region.put_columns`.

        Args:
            keys: A column of keys.
            values: A column of values.
            operations: A column of operations. None: each row is an update.

        Raises:
            SerializationError: A key is null, or a key or value cannot be carried. No row of the call was sent.
            EventTooLargeError: A key or value is over its limit.
            ConnectivityError: The connection broke. Nothing will be applied.
        """
        self._checked(self._sender.put_columns, keys, values, operations)

    def put_rows(self, keys: Any, names: Sequence[str], columns: Sequence[Any], operations: Any = None) -> None:
        """Sends one row for each key. Its value is a dict of the columns' values.

        Args:
            keys: A column of keys.
            names: The names of the columns: the keys of each dict.
            columns: The columns.
            operations: A column of operations. None: each row is an update.
        """
        self._checked(self._sender.put_rows, keys, names, columns, operations)

    def put_pairs(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Sends one row for each pair.

        Args:
            pairs: Pairs of a key and a value, which are Python objects.
        """
        self._checked(self._sender.put_pairs, pairs)

    def commit(self) -> dict[str, Any]:
        """Waits until the member has applied all rows.

        Returns:
            A map with "rows" (sent), "bytes" (sent), "applied" and "missing" (rows that destroy a key that is not
                there), and "duplicate": whether an earlier attempt of the task had been applied.

        Raises:
            QueueFullError: A sender's queue at the member had no room. The rows that are left go in when the same task
                is tried again there.
            LowMemoryError: The member is above its limit of memory. It is a QueueFullError too.
            DiskError: A disk of the member failed.
            ConnectivityError: The connection broke.
        """
        self._checked(self._sender.commit)
        try:
            done = gateway.decode(self._sender.answer, Committed)
        except DiskError as refusal:  # The text must say that it is the member's disk.
            raise type(refusal)(f"member at {self.place}: {refusal}") from None
        return {
            "rows": done.rows,
            "bytes": self._sender.bytes,
            "duplicate": done.duplicate,
            "applied": done.applied,
            "missing": done.missing,
        }

    def close(self) -> None:
        """Closes the connection. Rows that were not committed are dropped."""
        self._sock.close()

    def __enter__(self) -> DataConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _checked(self, call: Any, *args: Any) -> None:
        try:
            call(*args)
        except ConnectivityError as error:
            raise self._reason(error) from error

    def _reason(self, error: Exception) -> PywanError:
        """Returns the error to raise. A member says why it gives up before it closes; that says more than a broken
        pipe."""
        try:
            if self._sender.answer is not None:
                gateway.decode(self._sender.answer, Committed)
        except PywanError as refusal:
            return type(refusal)(f"member at {self.place}: {refusal}")
        return ConnectivityError(f"member at {self.place}: {error}")


def _opened(member: dict[str, Any], hello: ClientHello, links: Links, timeout: float, deadline: float) -> socket.socket:
    """Returns a connection to a member that has taken `hello`."""
    what = f"member {member['name']}"
    left_s = max(0.1, min(10.0, deadline - time.monotonic()))
    sock = links.server.connect((member["host"], member["port"]), left_s, what=what)
    try:
        sock.settimeout(timeout)
        data.set_socket_options(sock, 0, socket.SO_SNDBUF)
        data.keep_alive(sock)
        shown = links.server.shown_over(sock, what)
        if shown is not None:
            hello = replace(hello, user=shown.user, password=shown.password)
        sock.sendall(encode(hello, _core.FRAME_HELLO))
        data.receive_message(sock, Welcome)
        return sock
    except BaseException:
        sock.close()
        raise


def _members(locators: str, region: str, deadline: float, links: Links) -> list[dict[str, Any]]:
    """Returns the members that the first locator which knows some tells, in random order, those first that it knows to
    have the region. NoLocatorError if no locator knows a member."""
    trouble = []
    for address in parse_locators(locators):
        try:
            left_s = max(0.1, min(10.0, deadline - time.monotonic()))
            reply = call_once(address, "servers", timeout=left_s, way=links.locator, region=region)
            servers, having = check_servers(reply), check_having(reply)
        except PywanError as error:
            trouble.append(str(error))
            continue
        if servers:
            random.shuffle(servers)
            return sorted(servers, key=lambda member: member["name"] not in having)
        trouble.append(f"{address}: no member is registered")
    raise NoLocatorError(
        f"no member can be asked for at {locators}: {'; '.join(trouble) or 'no locator is given'}; nothing was sent"
    )

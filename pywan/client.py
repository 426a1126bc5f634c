"""Owns the client's connection to a member: the rows of one task, sent in bulk and applied as one. Imported by Spark's
executors, so it imports no more than that takes."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any

from pywan import _core
from pywan.base.addresses import parse_locators
from pywan.errors import ConnectivityError, DiskError, NoLocatorError, PywanError
from pywan.forks import of_one_process
from pywan.protocol import gateway
from pywan.protocol.gateway import ClientHello, Committed, Welcome, encode
from pywan.protocol.members import check_servers
from pywan.transport import data
from pywan.transport.control import call_once
from pywan.transport.sockets import connect


@of_one_process(lambda connection: f"the connection to the member at {connection.place}", nothing_in_child=("close",))
class DataConnection:
    """One task's rows on their way to a member of a site. Not for use by several threads.

    Rows are staged at the member; nothing is applied before `commit`, and what has the same (run_id, task) is applied
    once, whatever order its rows come in. Leaving without `commit` drops them.
    """

    def __init__(self, sock: socket.socket, place: str, region: str, timeout: float) -> None:
        self._sock = sock
        self._sender = _core.RowSender(sock.fileno(), timeout_s=timeout)
        self.place = place
        self.region = region

    @classmethod
    def open(cls, locators: str, *, region: str, run_id: bytes, task: int, timeout: float = 60.0) -> DataConnection:
        """Asks the locators for the site's members and connects to one. NoLocatorError, ConnectivityError or the member's
        refusal (RegionNotFoundError and the like, by its words), after `timeout` seconds at the latest."""
        deadline = time.monotonic() + timeout
        region = region.strip("/")
        members = _members(locators, deadline)
        random.shuffle(members)
        trouble = "no member is registered there"
        for member in members:
            place = f"{member['host']}:{member['port']}"
            try:
                sock = connect(
                    (member["host"], member["port"]),
                    max(0.1, min(10.0, deadline - time.monotonic())),
                    what=f"member {member['name']}",
                )
            except PywanError as error:
                trouble = str(error)
                continue
            try:
                sock.settimeout(timeout)
                data.set_socket_options(sock, 0, socket.SO_SNDBUF)
                data.keep_alive(sock)
                sock.sendall(encode(ClientHello(region=region, run_id=run_id, task=task), _core.FRAME_HELLO))
                data.receive_message(sock, Welcome)
            except BaseException:
                sock.close()
                raise
            return cls(sock, place, region, timeout)
        raise ConnectivityError(f"no member of the site behind {locators} can be reached: {trouble}; nothing was sent")

    def put_columns(self, keys: Any, values: Any, operations: Any = None) -> None:
        """One row per key, from columns (see Region.put_columns). A null key or one over the limit refuses the call."""
        self._checked(self._sender.put_columns, keys, values, operations)

    def put_rows(self, keys: Any, names: Sequence[str], columns: Sequence[Any], operations: Any = None) -> None:
        """One row per key; its value is a dict of the columns under `names`."""
        self._checked(self._sender.put_rows, keys, names, columns, operations)

    def put_pairs(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """One row per (key, value) of Python objects."""
        self._checked(self._sender.put_pairs, pairs)

    def commit(self) -> dict[str, Any]:
        """Returns when the member has applied all rows: rows, bytes, and whether an earlier attempt of the task had done so."""
        self._checked(self._sender.commit)
        try:
            done = gateway.decode(self._sender.answer, Committed)
        except DiskError as refusal:  # The member's, not ours.
            raise type(refusal)(f"member at {self.place}: {refusal}") from None
        return {
            "rows": done.rows,
            "bytes": self._sender.bytes,
            "duplicate": done.duplicate,
            "applied": done.applied,
            "missing": done.missing,
        }

    def close(self) -> None:
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
        """The member says why it gave up before it closes; that says more than a broken pipe."""
        try:
            if self._sender.answer is not None:
                gateway.decode(self._sender.answer, Committed)
        except PywanError as refusal:
            return type(refusal)(f"member at {self.place}: {refusal}")
        return ConnectivityError(f"member at {self.place}: {error}")


def _members(locators: str, deadline: float) -> list[dict[str, Any]]:
    trouble = []
    for address in parse_locators(locators):
        try:
            reply = call_once(address, "servers", timeout=max(0.1, min(10.0, deadline - time.monotonic())))
            servers = check_servers(reply)
        except PywanError as error:
            trouble.append(str(error))
            continue
        if servers:
            return servers
        trouble.append(f"{address}: no member is registered")
    raise NoLocatorError(
        f"no member can be asked for at {locators}: {'; '.join(trouble) or 'no locator is given'}; nothing was sent"
    )

"""Owns the gateway receiver of a member, and the memory of applied events, which outlives the receiver."""

from __future__ import annotations

import threading

from pywan.config.attributes import ReceiverAttributes
from pywan.errors import GatewayReceiverError, IllegalStateError, NotFoundError
from pywan.gateway.applied import AppliedMemory
from pywan.gateway.floors import SourceFloors
from pywan.gateway.receiver import GatewayReceiver
from pywan.member.regions import Regions
from pywan.member.state import MemberState
from pywan.protocol.members import DISPATCHERS_TOLD_MAX
from pywan.transport.links import RECEIVER_PORT, Gate


class Receiving:
    """The member's receiver, if the member has one. The receiver changes under the member's lock."""

    def __init__(self, state: MemberState, regions: Regions, bind_address: str) -> None:
        self._state, self._regions, self._bind_address = state, regions, bind_address
        self._applied = AppliedMemory()
        self._telling = threading.Lock()
        self.receiver: GatewayReceiver | None = None

    def create(self, floors: SourceFloors, made: ReceiverAttributes) -> GatewayReceiver:
        """Creates the receiver. IllegalStateError: the member has a receiver already."""
        state = self._state
        with state.lock:
            state.check_open()
            if self.receiver is not None:
                raise IllegalStateError(
                    f"member {state.name!r} has a gateway receiver already, and can have one; destroy it first"
                )
            receiver = GatewayReceiver(
                made,
                site=state.site,
                member_name=state.name,
                member_id=state.membership.member_id,
                gate=Gate(state.links, RECEIVER_PORT),
                guard=state.guard,
                identity=state.links.gateway_identity,
                bind_address=self._bind_address,
                memory=self._applied,
                floors=floors,
                find_region=self._regions.find,
                peers=state.membership.peers,
                on_change=self._changed,
            )
            if not made.manual_start:
                receiver.start()
            self.receiver = receiver
            self._changed(receiver)
            return receiver

    def destroy(self) -> None:
        """Removes the receiver. NotFoundError: the member has no receiver. GatewayReceiverError: the receiver runs."""
        with self._state.lock:
            if self.receiver is None:
                raise NotFoundError(f"member {self._state.name!r} has no gateway receiver")
            if self.receiver.is_running:
                raise GatewayReceiverError("gateway receiver: it runs; stop it before it is destroyed")
            self.receiver = None

    def stop(self) -> None:
        """Stops the receiver if the receiver runs."""
        if self.receiver is not None and self.receiver.is_running:
            self.receiver.stop()

    def _changed(self, receiver: GatewayReceiver) -> None:
        """Tells the site's locators the address of the receiver, and the number of its connections."""
        if not self._state.has_membership or self._state.closed.is_set():
            return
        with self._telling:  # The last message has the newest state.
            dispatchers = receiver.connected_dispatchers
            newest = dispatchers[-DISPATCHERS_TOLD_MAX:]
            place = {"host": receiver.host, "port": receiver.port, "dispatchers": newest}
            receivers = [place] if receiver.is_running else []
            self._state.membership.update(receivers=receivers, load=len(dispatchers))

"""Owns the agreement of a site's members about each gateway sender: the sender's attributes, the members that run the
sender, and the dispatching member of a serial sender.

The site knows a sender as a region of one bucket, the *role region*. The members that run the sender have the replicas
of the role region, and the primary of the bucket is the primary of the sender. So the sender's primary has a lease and
an epoch, and is replaced like the primary of a bucket (docs/decisions/0092).
"""

from __future__ import annotations

import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

from pywan.base.addresses import Address
from pywan.base.names import MAX_NAME_CHARACTERS
from pywan.config.attributes import QueueAttributes, RegionAttributes, SenderAttributes
from pywan.config.values import to_int
from pywan.coordination.tables import (
    ROLE_PREFIX,
    SENDERS_TEXT_MAX,
    DecisionId,
    Incarnation,
    MemberProfile,
    RegionAttributes as SharedAttributes,
)
from pywan.errors import IllegalStateError, PywanError
from pywan.member.hosting import EQUAL_WEIGHT_MB, site_attributes
from pywan.region.member_region import MemberRegion
from pywan.transport.control import call_once
from pywan.transport.links import PLAIN, Way

log = logging.getLogger("pywan.sender")

_FILTERS = ("gateway_event_filters", "gateway_event_substitution_filter")
# Attributes of a sender, beside its filters, with equal values at all members: as in Geode, and attributes for telling
# events apart.
_ALIKE = (
    "remote_distributed_system_id",
    "parallel",
    "enable_batch_conflation",
    "alert_threshold",
    "order_policy",
    "enforce_threads_connect_same_receiver",
    "acknowledge_once",
)
_ASK_TIMEOUT_S = 1.0  # Timeout of the question how many events wait at another member.
# A member waits this long for a metadata record before its reply. Then the question is repeated.
HAS_DECISION, HAS_DECISION_MS = "has-decision", 200
FLUSH_QUEUE, FLUSH_MS = "flush-queue", 100  # Limit of a flush of a queue on behalf of another member.
_LOOK_S = 0.1  # Interval of the checks whether the coordinator is away.
_UNCLEAN_RECOVERY_TIMEOUT_MS = 1_000  # A role has no content, so no bucket waits for a member that may return.


def role_name(id: str) -> str:
    return f"{ROLE_PREFIX}{id}"


def is_shared_sender(made: QueueAttributes) -> bool:
    """Returns whether the members of a site share the sender. A queue with a log, or with a listener, belongs to one
    member (`Limitation.ONE_MEMBER`)."""
    return isinstance(made, SenderAttributes) and not made.enable_persistence


def words_of(made: SenderAttributes) -> str:
    """Returns the sender's attributes with equal values at all members, as `name=value` parts."""
    alike = {name: getattr(made, name) for name in _ALIKE if hasattr(made, name)}
    # Members may have different numbers of dispatchers. One dispatcher by itself keeps a stricter order than the
    # default.
    alike["order_policy"] = made.order_policy or "key"
    parts = [f"{name.replace('_', '-')}={_shown(value)}" for name, value in alike.items()]
    filters = [f"{name.replace('_', '-')}={_shown(getattr(made, name))}" for name in _FILTERS]
    words = "; ".join((*parts, *filters))
    if len(words) > SENDERS_TEXT_MAX:  # The names of classes may be long.
        words = "; ".join((*parts, f"filters={zlib.crc32(words.encode()):x}"))
    return words


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return ",".join(sorted(map(_shown, value)))
    if isinstance(value, (bool, int)):
        return str(value).lower()
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}:{kind.__qualname__}"


def ids_of(made: RegionAttributes) -> str:
    """Returns the ids of a region's senders in the same form at all members."""
    words = ",".join(sorted(made.gateway_sender_ids))
    if len(words) > SENDERS_TEXT_MAX:
        words = f"{len(made.gateway_sender_ids)} senders, {zlib.crc32(words.encode()):x}"
    return words


def _ask(way: Way, member: MemberProfile, what: str, **more: Any) -> int:
    """Asks another member for the number of its dispatched events."""
    reply = call_once(Address(member.host, member.port), what, timeout=_ASK_TIMEOUT_S, way=way, **more)
    return to_int(reply.get("local_queue_size"), "local_queue_size", 0, 1 << 62)


class RoleSharing(Protocol):
    """The functions of SharedRegions that roles need."""

    def take_part(self, region: MemberRegion, is_decided: bool) -> None: ...
    def take_no_part(self, name: str) -> None: ...
    def kept_by_others(self, id: str) -> int: ...
    def sender_primary(self, id: str) -> Incarnation | None: ...
    def wait_for_tables(self, is_so: Callable[[], bool], timeout: float) -> bool: ...
    @property
    def call_timeout_s(self) -> float: ...


class RoleAgent(Protocol):
    """The functions of Agent that roles need."""

    @property
    def me(self) -> Incarnation: ...
    @property
    def tables(self) -> Any: ...
    @property
    def is_away(self) -> bool: ...
    def host(self, region: str, attributes: SharedAttributes, weight: int, timeout: float | None = None) -> bool: ...
    def unhost(self, region: str) -> None: ...


class SenderRoles:
    """The roles of this member's senders. The owner of the senders calls the methods, one call for a sender at a
    time."""

    def __init__(
        self,
        agent: RoleAgent,
        sharing: RoleSharing,
        make_region: Callable[[RegionAttributes], MemberRegion],
        way: Way = PLAIN.cluster,
    ) -> None:
        """`way`: connects to members."""
        self._way = way
        self._agent, self._sharing, self._make_region = agent, sharing, make_region
        self._running: set[str] = set()
        self._words: dict[str, str] = {}  # By id: the attributes announced last.

    def _told(self, made: SenderAttributes) -> SharedAttributes:
        words = self._words[made.id] = words_of(made)
        return replace(site_attributes(self._region_attributes(made.id)), senders=words)

    @staticmethod
    def _region_attributes(id: str) -> RegionAttributes:
        return RegionAttributes.make(
            role_name(id),
            type="PARTITION",
            total_num_buckets=1,
            redundant_copies=1,
            recovery_delay=0,
            unclean_recovery_timeout=_UNCLEAN_RECOVERY_TIMEOUT_MS,
        )

    def tell(self, made: QueueAttributes) -> None:
        """Announces to the site a sender of this member: not running yet, or altered.

        IllegalStateError: other members have different attributes for the sender. Then the caller must not create the
        sender.
        """
        if not is_shared_sender(made):
            return
        assert isinstance(made, SenderAttributes)
        if len(role_name(made.id)) > MAX_NAME_CHARACTERS:
            raise IllegalStateError(
                f"{made.what}: its id has more than {MAX_NAME_CHARACTERS - len(ROLE_PREFIX)} characters; on a site with"
                " a locator, take a shorter one"
            )
        weight = EQUAL_WEIGHT_MB if made.id in self._running else 0
        self._agent.host(role_name(made.id), self._told(made), weight)

    def altered(self, made: QueueAttributes) -> None:
        """Announces an altered sender. Members may use the earlier attributes for a while. Returns at once."""
        if is_shared_sender(made) and isinstance(made, SenderAttributes) and words_of(made) != self._words.get(made.id):
            weight = EQUAL_WEIGHT_MB if made.id in self._running else 0
            self._agent.host(role_name(made.id), self._told(made), weight, timeout=0.0)

    def forget(self, made: QueueAttributes) -> None:
        """Removes a sender after its end, or after a failed creation."""
        if is_shared_sender(made):
            self.stopped(made)
            self._words.pop(made.id, None)
            self._agent.unhost(role_name(made.id))

    def started(self, made: QueueAttributes) -> None:
        """The sender runs here. Returns at once: the cluster metadata name the primary."""
        if not is_shared_sender(made) or made.id in self._running:
            return
        assert isinstance(made, SenderAttributes)
        self._running.add(made.id)
        is_decided = self._agent.host(role_name(made.id), self._told(made), EQUAL_WEIGHT_MB, timeout=0.0)
        self._sharing.take_part(self._make_region(self._region_attributes(made.id)), is_decided)

    def stopped(self, made: QueueAttributes) -> None:
        """The sender runs here no more: another running member becomes primary."""
        # A queue with a listener may have the id of a sender.
        if not is_shared_sender(made) or made.id not in self._running:
            return
        assert isinstance(made, SenderAttributes)
        self._running.discard(made.id)
        self._sharing.take_no_part(role_name(made.id))
        self._agent.unhost(role_name(made.id))
        self._agent.host(role_name(made.id), self._told(made), 0, timeout=0.0)

    def wait_known(self, made: QueueAttributes) -> None:
        """Returns when all members with the sender know whether the sender runs here. From then on the primaries of the
        site's buckets queue events for the sender, or queue none, accordingly.

        The wait ends after the timeout of a call, with a log line about the unaware members. A primary of a bucket
        checks a parallel sender in its own member alone, so a parallel sender needs no wait.
        """
        if not is_shared_sender(made) or made.parallel:
            return
        limit_s = self._sharing.call_timeout_s
        deadline = time.monotonic() + limit_s
        while not self._sharing.wait_for_tables(lambda: self._is_shown(made), _LOOK_S):
            if self._agent.is_away and not self._others(made):
                return
            if time.monotonic() >= deadline:
                break
        decision, unaware = self._agent.tables.newest, self._others(made)
        while unaware := [each for each in unaware if self._is_there(each) and not self._has(each, decision)]:
            if time.monotonic() >= deadline:
                break
            self._sharing.wait_for_tables(lambda: not all(map(self._is_there, unaware)), _LOOK_S)
        if unaware:
            log.warning(
                "%s %s on this member, and within %g s member %s did not say that it knows: until it does, changes of"
                " the buckets that it leads may be queued as before (`show coordinator`)",
                made.label,
                "runs" if made.id in self._running else "is stopped",
                limit_s,
                ", ".join(sorted(each.incarnation.name for each in unaware)),
            )

    def _is_shown(self, made: QueueAttributes) -> bool:
        """Returns whether the cluster metadata show the present state of the sender here."""
        profile = self._agent.tables.members.get(self._agent.me)
        weight = dict(profile.hosting).get(role_name(made.core_id)) if profile is not None else None
        return weight is not None and (weight > 0) == (made.id in self._running)

    def _is_there(self, member: MemberProfile) -> bool:
        return member.incarnation in self._agent.tables.members

    def _has(self, member: MemberProfile, decision: DecisionId) -> bool:
        """Returns whether the metadata record is in effect at the member. The member replies as soon as the record is
        in effect."""
        address = Address(member.host, member.port)
        fields = {"decision": [*decision], "ms": HAS_DECISION_MS}
        try:
            reply = call_once(address, HAS_DECISION, timeout=_ASK_TIMEOUT_S, way=self._way, **fields)
        except PywanError:
            return False
        return reply.get("has") is True

    def is_primary(self, made: QueueAttributes) -> bool:
        """Returns whether this member sends the events of a sender running here."""
        return made.parallel or not is_shared_sender(made) or self._sharing.sender_primary(made.id) == self._agent.me

    def kept_by_others(self, made: QueueAttributes) -> int:
        """Returns how many events of the sender's queue are at a second member too."""
        return self._sharing.kept_by_others(made.core_id)

    def queued_at_others(self, made: QueueAttributes) -> int:
        """Asks the other members with the sender for the number of sent events. A member without a reply adds none."""
        total = 0
        for each in self._others(made):
            with contextlib.suppress(PywanError):
                total += _ask(self._way, each, "queue-size", id=made.core_id)
        return total

    def flush_others(self, made: QueueAttributes, seconds: float) -> bool:
        """Makes the other members with the sender send without waiting for full batches, for a moment, and `seconds` at
        most. Returns whether all their events have left. The events of a member without a reply are unknown."""
        deadline, has_left = time.monotonic() + seconds, True
        for each in self._others(made):
            ms = int(min(max(deadline - time.monotonic(), 0) * 1000, FLUSH_MS))
            try:
                has_left &= _ask(self._way, each, FLUSH_QUEUE, id=made.core_id, ms=ms) == 0
            except PywanError:
                has_left = False
        return has_left

    def _others(self, made: QueueAttributes) -> list[MemberProfile]:
        """Returns the other members with the sender."""
        name, members = role_name(made.core_id), list(self._agent.tables.members.values())
        return [
            each
            for each in members
            if each.incarnation != self._agent.me and any(region == name for region, _ in each.hosting)
        ]

"""Owns a member's side of the coordination of its site: its place in the view, its lease, and the tables.

A request is repeated until the tables show its effect, so the coordinator may drop any of them. A member whose locators
have no coordinator works alone, and goes on asking.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pywan.base.addresses import Address, parse_locators
from pywan.base.clocks import boot_us
from pywan.base.draws import drawn_number
from pywan.base.files import FileError, read_regular, write_whole
from pywan.base.names import check_name
from pywan.base.processes import has_ended, this_process
from pywan.base.threads import start_thread
from pywan.coordination import encoding
from pywan.coordination.messages import Refused, Tables
from pywan.coordination.tables import (
    NO_DECISION,
    OWNED,
    Bucket,
    BucketKey,
    Epoch,
    Holding,
    Incarnation,
    Learner,
    MemberProfile,
    RegionAttributes,
)
from pywan.errors import (
    ConfigurationError,
    ConnectivityError,
    IllegalStateError,
    NotFoundError,
    ProtocolError,
    PywanError,
)
from pywan.forks import of_one_process
from pywan.transport.control import ControlClient

log = logging.getLogger("pywan.agent")

CALL_TIMEOUT_S = 3.0
RETRY_S = 0.2  # So soon the locators are asked again when none of them coordinated. The pause grows.
RETRY_MAX_S = 2.0
REPEAT_S = 0.2  # So soon a request is repeated whose effect the tables do not show. The pause grows.
REPEAT_MAX_S = 2.0
HOST_TIMEOUT_S = 10.0
LEAVE_TIMEOUT_S = 5.0
GOODBYE_S = 1.0
STOP_TIMEOUT_S = 5.0
REQUESTS_AT_ONCE = 1000  # In one message.
MAX_FILE_BYTES = 64 * 1024


class SiteTables:
    """What a member knows of the decisions of its site. Its agent's thread changes it; any thread may read."""

    def __init__(self) -> None:
        self.newest = NO_DECISION
        self.coordinator = ""
        self.members: dict[Incarnation, MemberProfile] = {}
        self.regions: dict[str, RegionAttributes] = {}
        self.buckets: dict[BucketKey, Bucket] = {}
        self.undecided: set[BucketKey] = set()  # The coordinator has forgotten what it decided about them.

    def take(self, tables: Tables) -> Tables | None:
        """Takes what is newer than what is known. Returns what has changed, or None: nothing has.

        Tables that begin at 0 are whole, so what they do not name is no more: the answer names it with None. What is
        undecided stays as it is known.
        """
        if tables.newest.generation < self.newest.generation:
            return None
        is_newer = (tables.newest.generation, tables.newest.number) > (self.newest.generation, self.newest.number)
        if not is_newer or tables.since > self.newest.number:
            return None
        if tables.since == 0:
            self.undecided = set(tables.undecided)
            regions = {name for name, _ in tables.regions}
            buckets = {*tables.undecided, *(key for key, _ in tables.buckets)}
            tables = replace(
                tables,
                regions=(*tables.regions, *((name, None) for name in self.regions if name not in regions)),
                buckets=(*tables.buckets, *((key, None) for key in self.buckets if key not in buckets)),
            )
        self.newest, self.coordinator = tables.newest, tables.coordinator
        if tables.members is not None:
            self.members = {each.incarnation: each for each in tables.members}
        for name, attributes in tables.regions:
            self.regions.pop(name, None)
            if attributes is not None:
                self.regions[name] = attributes
        for key, bucket in tables.buckets:
            self.undecided.discard(key)
            self.buckets.pop(key, None)
            if bucket is not None:
                self.buckets[key] = bucket
        return tables


@dataclass
class _Request:
    """What is asked until `is_done` says that the tables show its effect. None: an answer is enough.

    Tables that are older than the newest answer may show the effect of an earlier request. So they do not count.
    """

    fields: list[Any]
    is_done: Callable[[], bool] | None
    needs_answer: bool = False  # The tables count as soon as they have what was decided before an answer.
    answered_at: int = -1  # The newest decision at an answer.
    due: float = 0.0
    pause_s: float = REPEAT_S
    refused: str = ""
    done: bool = False


@dataclass
class _Hosted:
    attributes: RegionAttributes
    weight: int
    is_known: bool = False  # The tables have shown it: a coordinator that has forgotten the member is told so.


def _nothing(*_: object) -> None:
    pass


@of_one_process(lambda agent: f"the agent of member {agent.name!r}", nothing_in_child=("leave", "stop"))
class Agent:
    """A member's agent. Any thread may use it. `leave` or `stop` ends its two threads.

    Args:
        name: The member's name.
        member_id: Of this incarnation of the member.
        host: Where other members reach it.
        port: Where other members reach it.
        site: The site's id.
        locators: Returns the addresses of the site's locators.
        file: What outlives the process: the site's identity, the coordinator's name, the newest decision. None: nothing
            does.
        version: Of pywan.
        on_change: Called with each change of the tables, in order, in the agent's thread. `tables` has it already.
        on_lease: Called with the time until which the lease runs, in microseconds of CLOCK_BOOTTIME.
        on_given_up: Called when the coordinator has given this incarnation up, with the new one. All copies are
            worthless now.
    """

    def __init__(
        self,
        name: str,
        member_id: int,
        *,
        host: str,
        port: int,
        site: int,
        locators: Callable[[], list[Address]],
        file: Path | None,
        version: str,
        on_change: Callable[[Tables], object] = _nothing,
        on_lease: Callable[[int], object] = _nothing,
        on_given_up: Callable[[Incarnation], object] = _nothing,
    ) -> None:
        self.name = name
        self._host, self._port, self._site, self._version = host, port, site, version
        self._locators, self._file = locators, file
        self._on_change, self._on_lease, self._on_given_up = on_change, on_lease, on_given_up
        self.tables = SiteTables()
        # `_changed` guards everything below, and the changes of `tables`.
        self._changed = threading.Condition()
        self._me = Incarnation(name, member_id)
        self._coordinator = ""
        self._identity = ""
        self._seen = NO_DECISION  # The newest decision that any incarnation of this member heard of.
        self._address: Address | None = None  # Where the coordinator answered last.
        self._is_joined = False
        self._has_tried = False  # Every locator was asked once.
        self._reports = False  # The next join says what the member holds.
        self._ended: Incarnation | None = None  # An earlier incarnation that is proved to be gone.
        self._refusal = ""  # Why the coordinator does not take the member in.
        self._problem = ""  # Why nobody coordinates.
        self._away_since = time.time()
        self._lease_until_us = 0
        self._hosted: dict[str, _Hosted] = {}
        self._requests: dict[tuple[Any, ...], _Request] = {}
        self._may_leave = False
        self._is_given_up = False  # `on_given_up` is to be called.
        self._retry_at = 0.0  # A refusal that passes is tried again then. 0: there is none.
        self._is_leaving = False  # The coordinator was told that this incarnation ends.
        self._stopping = False
        self._clients: set[_Client] = set()
        self._threads: list[threading.Thread] = []
        if file is not None:
            self._read(file)

    # --- life cycle ---

    def start(self) -> None:
        with self._changed:
            what = f"member {self.name} cannot take part in the coordination of its site"
            for word, run in (("agent", self._run), ("agent-asks", self._run_requests)):
                self._threads.append(start_thread(what, f"{self.name}-{word}", run))

    def leave(self, timeout: float = LEAVE_TIMEOUT_S) -> bool:
        """Leaves the site: others become primary first. Returns whether the coordinator said that nobody waits for this
        member. Then, or after `timeout` seconds, the agent has stopped."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._requests.clear()
            if self._is_joined and not self._stopping:
                self._may_leave = False
                if self.tables.members.keys() - {self._me}:
                    request = self._ask(("leave",), ["leave"], lambda: self._may_leave)
                    self._changed.wait_for(
                        lambda: request.done or self._stopping or not self._is_joined or self._problem,
                        deadline - time.monotonic(),
                    )
                else:
                    self._may_leave = True
                self._requests.clear()
                self._is_leaving = True
                if self._is_joined and not self._stopping:
                    goodbye = self._ask(("left",), ["left"], None)
                    self._changed.wait_for(
                        lambda: goodbye.done or self._stopping or self._problem, min(timeout, GOODBYE_S)
                    )
            left = self._may_leave
        self.stop()
        return left

    def stop(self) -> None:
        """Ends the threads, without a word to the coordinator. It may be called twice."""
        with self._changed:
            self._stopping = True
            clients = list(self._clients)
            self._changed.notify_all()
        for client in clients:
            client.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(STOP_TIMEOUT_S)

    # --- what is known ---

    @property
    def me(self) -> Incarnation:
        """The incarnation that the member has now. It changes when the coordinator has given the member up."""
        return self._me

    @property
    def site_identity(self) -> str:
        """The site's identity. Empty: no coordinator has told it yet."""
        return self._identity

    @property
    def is_joined(self) -> bool:
        """Whether the coordinator has taken the member in, and has not given it up as far as is known."""
        return self._is_joined

    @property
    def lease_until_us(self) -> int:
        return self._lease_until_us

    def status(self) -> dict[str, Any]:
        """Returns the state of the coordination as plain values: who coordinates, the lease, what waits."""
        with self._changed:
            left_us = self._lease_until_us - boot_us()
            return {
                "incarnation": str(self._me),
                "coordinator": self._coordinator,
                "site_identity": self._identity,
                "joined": self._is_joined,
                "away_since": self._away_since or None,
                "problem": self._refusal or self._problem,
                "lease_ms": max(left_us, 0) // 1000,
                "decision": list(self.tables.newest),
                "members": [str(each) for each in sorted(self.tables.members)],
                "regions": sorted(self._hosted),
                "waiting": sorted({str(key[0]) for key in self._requests}),
            }

    def wait_joined(self, timeout: float) -> bool:
        """Returns whether the member is in the view, as soon as it is, or nobody coordinates, or the time is over.

        IllegalStateError if the coordinator refuses the member for good.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_joined or self._stopping or (self._has_tried and not self._retry_at), timeout
            )
            if self._refusal:
                raise IllegalStateError(self._refusal)
            return self._is_joined

    # --- requests ---

    def host(self, region: str, attributes: RegionAttributes, weight: int, timeout: float = HOST_TIMEOUT_S) -> bool:
        """Tells the site that this member has the region. Returns whether the tables show it.

        Args:
            region: The region's name.
            attributes: What all members say alike of it.
            weight: local-max-memory in MB; 0: it is an accessor.
            timeout: The limit in seconds. False is returned also at once if no locator coordinates; the agent goes on
                telling in the background.

        Raises:
            IllegalStateError: The coordinator refuses the region, or the member. The text says why.
        """
        deadline = time.monotonic() + timeout
        self.wait_joined(timeout)
        with self._changed:
            self._hosted[region] = _Hosted(attributes, weight)
            request = self._ask_to_host(region)
            self._changed.wait_for(
                lambda: request.done or self._stopping or not self._is_joined, deadline - time.monotonic()
            )
            if request.refused:
                self._hosted.pop(region, None)
                raise IllegalStateError(request.refused)
            return request.done

    def _ask_to_host(self, region: str) -> _Request:
        hosted = self._hosted[region]

        def is_done() -> bool:
            profile = self.tables.members.get(self._me)
            if profile is None or (region, hosted.weight) not in profile.hosting:
                return False
            hosted.is_known = True
            return True

        fields = ["host", region, encoding.plain_attributes(hosted.attributes), hosted.weight]
        return self._ask(("host", region), fields, is_done, needs_answer=True)

    def shared(self, region: str, epoch: Epoch) -> None:
        """The member, owner of the region under `epoch`, has given it a tail: others may use it, and learn."""
        key = BucketKey(region, OWNED)

        def is_done() -> bool:
            bucket = self.tables.buckets.get(key)
            return bucket is None or bucket.primary != self._me or bucket.epoch != epoch

        with self._changed:
            self._ask(("shared", region), ["shared", region, encoding.plain_epoch(epoch)], is_done)

    def unhost(self, region: str) -> None:
        """Tells the site that this member has closed the region. Its copies are gone."""
        with self._changed:
            self._hosted.pop(region, None)
            self._requests.pop(("host", region), None)
            self._ask(("unhost", region), ["unhost", region], None)

    def destroy_region(self, region: str) -> None:
        """Tells the site that the region goes everywhere."""
        with self._changed:
            self._hosted.pop(region, None)
            self._requests.pop(("host", region), None)
            self._ask(("destroy-region", region), ["destroy-region", region], None)

    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None:
        """The member, primary of the bucket under `epoch`, waits for the learner with every change from now on."""

        def is_done() -> bool:
            bucket = self.tables.buckets.get(key)
            return bucket is None or bucket.epoch != epoch or learner not in bucket.learners

        fields = [
            "caught-up",
            encoding.plain_key(key),
            encoding.plain_epoch(epoch),
            encoding.plain_incarnation(learner.member),
            learner.transfer,
        ]
        with self._changed:
            self._ask(("caught-up", key, learner), fields, is_done)

    def unreachable(self, epochs: Mapping[BucketKey, Epoch], copy: Incarnation) -> None:
        """The member, primary of these buckets, asks to take a copy out that does not answer."""

        def is_done(key: BucketKey, epoch: Epoch) -> bool:
            bucket = self.tables.buckets.get(key)
            return bucket is None or bucket.epoch != epoch or copy not in bucket.holders

        with self._changed:
            for key, epoch in epochs.items():
                self._ask(
                    ("unreachable", key, copy),
                    [
                        "unreachable",
                        encoding.plain_incarnation(copy),
                        [encoding.plain_key(key), encoding.plain_epoch(epoch)],
                    ],
                    lambda key=key, epoch=epoch: is_done(key, epoch),  # type: ignore[misc]
                )

    def ready(self, keys: Iterable[BucketKey]) -> None:
        """The member, the new primary of these buckets, has reached all copies, and accepts changes."""
        with self._changed:
            for key in keys:
                self._ask(("ready", key), ["ready", encoding.plain_key(key)], None)

    def suspect(self, member: Incarnation) -> None:
        """A connection to that member was refused or reset: the coordinator is to look at it at once."""
        with self._changed:
            self._ask(("suspect", member), ["suspect", encoding.plain_incarnation(member)], None)

    def learned(self, key: BucketKey, bucket: Bucket) -> None:
        """Another member has told a decision that is newer than the one in the tables."""
        with self._changed:
            known = self.tables.buckets.get(key)
            if known is None or (bucket.epoch, bucket.version) > (known.epoch, known.version):
                self.tables.buckets[key] = bucket

    def _ask(
        self,
        key: tuple[Any, ...],
        fields: list[Any],
        is_done: Callable[[], bool] | None,
        *,
        needs_answer: bool = False,
    ) -> _Request:
        """Adds a request, in place of an earlier one with the same key. The caller holds the lock."""
        request = self._requests.pop(key, None)
        if request is None or request.fields != fields:
            request = _Request(fields, is_done, needs_answer)
        self._requests[key] = request
        self._settle()
        self._changed.notify_all()
        return request

    def _settle(self) -> None:
        """Drops the requests whose effect the tables show. The caller holds the lock."""
        settled = [
            key
            for key, each in self._requests.items()
            if each.is_done is not None
            and not (each.needs_answer and not 0 <= each.answered_at <= self.tables.newest.number)
            and each.is_done()
        ]
        for key in settled:
            self._requests.pop(key).done = True
        if settled:
            self._changed.notify_all()

    # --- the thread that sends requests ---

    def _run_requests(self) -> None:
        while True:
            with self._changed:
                wait_s = self._wait_for_requests()
                if self._stopping:
                    return
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                now = time.monotonic()
                batch = [each for each in self._requests.items() if each[1].due <= now][:REQUESTS_AT_ONCE]
                for _, request in batch:
                    request.due = now + request.pause_s
                    request.pause_s = min(request.pause_s * 2, REPEAT_MAX_S)
                me, address = self._me, self._address
            assert address is not None
            try:
                self._send(me, address, batch)
            except PywanError as error:
                log.debug("member %s: %s", self.name, error)
            except Exception:
                log.exception("member %s: a request to the coordinator failed", self.name)

    def _wait_for_requests(self) -> float | None:
        """Returns in how many seconds a request is due; None: nothing is to be sent. The caller holds the lock."""
        if not self._is_joined or self._address is None or not self._requests:
            return None
        return min(each.due for each in self._requests.values()) - time.monotonic()

    def _send(self, me: Incarnation, address: Address, batch: list[tuple[tuple[Any, ...], _Request]]) -> None:
        client = self._client("asks", address)
        reply = client.call(
            "coordination-ask", me=encoding.plain_incarnation(me), requests=[each.fields for _, each in batch]
        )
        if reply.get("decides") is not True:
            return
        refused = reply.get("refused_requests", [])
        with self._changed:
            for index, refusal in refused:
                request = batch[index][1]
                request.refused = encoding.refused_of(refusal).reason
            self._may_leave = self._may_leave or reply.get("may_leave") is True
            for key, request in batch:
                request.answered_at = encoding.number_of(reply.get("decision"))
                if request.refused or request.is_done is None:
                    request.done = True
                    if self._requests.get(key) is request:
                        del self._requests[key]
            self._settle()
            self._changed.notify_all()

    # --- the thread that joins, renews and hears ---

    def _run(self) -> None:
        pause_s = RETRY_S
        while True:
            with self._changed:
                if self._stopping:
                    return
                joined = self._is_joined
            try:
                wait_s = self._poll() if joined else self._join()
                pause_s = RETRY_S
            except PywanError as error:
                self._note_away(error)
                wait_s, pause_s = pause_s, min(pause_s * 2, RETRY_MAX_S)
            except Exception as error:
                log.exception("member %s: the exchange with the coordinator failed", self.name)
                self._note_away(ProtocolError(f"{type(error).__name__}: {error}"))
                wait_s = RETRY_MAX_S
            with self._changed:
                is_given_up, self._is_given_up = self._is_given_up, False
            if is_given_up:
                self._on_given_up(self._me)
            with self._changed:
                if wait_s:
                    self._changed.wait_for(lambda: self._stopping, wait_s)

    def _client(self, use: str, address: Address) -> ControlClient:
        """Returns the client for that use, connected to that address when it is used."""
        with self._changed:
            if self._stopping:
                raise ConnectivityError(f"member {self.name} is leaving its site")
            for client in list(self._clients):
                if client.use == use:
                    if client.address == address:
                        return client
                    self._clients.discard(client)
                    client.close()
            client = _Client(use, address)
            self._clients.add(client)
            return client

    def _call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Asks the coordinator, wherever it is. ConnectivityError says why no locator coordinates."""
        with self._changed:
            first = self._address
        addresses = list(dict.fromkeys([*([first] if first is not None else []), *self._locators()]))
        reasons: list[str] = []
        asked = 0
        while asked < len(addresses):
            address = addresses[asked]
            asked += 1
            try:
                reply = self._client("news", address).call(op, **fields)
            except NotFoundError:
                reasons.append(f"locator {address} is of a version without a coordinator")
                continue
            except ConnectivityError as error:
                reasons.append(str(error))
                continue
            if reply.get("decides") is True:
                with self._changed:
                    self._address = address
                return reply
            named, there = reply.get("coordinator"), reply.get("address")
            if reply.get("problem"):
                reasons.append(f"locator {address} decides nothing: {reply['problem']}")
            elif named:
                reasons.append(f"locator {address} names {named} as the coordinator")
            else:
                reasons.append(f"locator {address} does not know yet who coordinates")
            if there and isinstance(there, str):
                addresses += [each for each in parse_locators(there) if each not in addresses]
        with self._changed:
            self._address = None
        raise ConnectivityError("; ".join(reasons) or "no locator is known")

    def _join(self) -> float:
        """Asks to be taken in. Returns after how many seconds the next question comes."""
        with self._changed:
            me, reports = self._me, self._reports
            known = {name: each for name, each in self._hosted.items() if each.is_known}
            hosting = tuple((name, each.weight) for name, each in sorted(known.items()))
            fields: dict[str, Any] = {
                "profile": encoding.plain_profile(
                    MemberProfile(
                        me,
                        self._host,
                        self._port,
                        self._site,
                        self._identity,
                        self._seen,
                        self._version,
                        hosting,
                        this_process(),
                    )
                ),
                "stored": encoding.plain_decision_id(self.tables.newest),
                "regions": {name: encoding.plain_attributes(each.attributes) for name, each in known.items()},
                "coordinator": self._coordinator,
                "ended": self._ended and encoding.plain_incarnation(self._ended),
            }
            if reports and self.tables.buckets:
                holdings = {
                    key: Holding(bucket, me in (*bucket.in_sync, *bucket.leaving))
                    for key, bucket in self.tables.buckets.items()
                }
                fields["holdings"] = encoding.pack(encoding.plain_holdings(holdings))
        sent_us = boot_us()
        reply = self._call("coordination-join", **fields)
        refused = [encoding.refused_of(each) for each in reply.get("refused", [])]
        with self._changed:
            self._has_tried = True
            self._problem = ""
            for refusal in refused:
                if refusal.join_again:  # Perhaps because the site has another name than this member was told.
                    self._identity = str(reply.get("site_identity", self._identity))
                return self._take_refusal(refusal)
            self._ended, self._refusal, self._retry_at = None, "", 0.0
            self._is_joined, self._reports = True, False
            self._coordinator = check_name(reply.get("coordinator"), "a coordinator", ProtocolError)
            self._identity = str(reply.get("site_identity", self._identity))
            self._away_since = 0.0
            for name, each in self._hosted.items():
                if not each.is_known:
                    self._ask_to_host(name)
            self._changed.notify_all()
        self._extend(sent_us, reply)
        self._take(encoding.tables_of(encoding.unpack(reply.get("tables"))))
        return 0

    def _take_refusal(self, refusal: Refused) -> float:
        """Returns after how many seconds to ask again. The caller holds the lock."""
        if refusal.join_again:
            if self._is_leaving:
                return RETRY_S
            self._begin_again(refusal.reason)
            return 0
        if refusal.report:
            self._is_joined, self._reports = False, True
            return 0
        self._is_joined = False
        if refusal.earlier is not None and has_ended(refusal.earlier.process):
            self._ended = refusal.earlier.incarnation
        if refusal.reason != self._refusal:
            log.warning("member %s is not taken in by coordinator %s: %s", self.name, self._coordinator, refusal.reason)
        self._refusal = refusal.reason
        wait_s = min(max(refusal.retry_after_us / 1e6, 0.01), RETRY_S) if refusal.retry_after_us else RETRY_MAX_S
        self._retry_at = time.monotonic() + wait_s if refusal.retry_after_us else 0.0
        self._changed.notify_all()
        return wait_s

    def _begin_again(self, why: str) -> None:
        """The coordinator has given this incarnation up: the member begins another one. The caller holds the lock."""
        earlier, self._me = self._me, Incarnation(self.name, drawn_number(32))
        log.error(
            "member %s was given up by coordinator %s (%s); it drops what it has of shared regions, and begins anew as"
            " %s",
            earlier,
            self._coordinator,
            why,
            self._me,
        )
        self._is_joined, self._reports, self._lease_until_us = False, False, 0
        self._ended = earlier
        self.tables = SiteTables()
        self._requests.clear()
        for each in self._hosted.values():
            each.is_known = False
        self._is_given_up = True
        self._changed.notify_all()

    def _poll(self) -> float:
        """Renews the lease, and takes what is new. Returns after how many seconds the next question comes."""
        with self._changed:
            me, stored = self._me, self.tables.newest
        sent_us = boot_us()
        reply = self._call(
            "coordination-poll", me=encoding.plain_incarnation(me), stored=encoding.plain_decision_id(stored)
        )
        refused = [encoding.refused_of(each) for each in reply.get("refused", [])]
        with self._changed:
            self._may_leave = self._may_leave or reply.get("may_leave") is True
            for refusal in refused:
                if refusal.join_again or refusal.report:
                    return self._take_refusal(refusal)
                log.warning("member %s: coordinator %s refuses: %s", self.name, self._coordinator, refusal.reason)
            self._away_since, self._problem = 0.0, ""
            self._changed.notify_all()
        self._extend(sent_us, reply)
        packed = reply.get("tables")
        if packed is not None:
            self._take(encoding.tables_of(encoding.unpack(packed)))
        return 0

    def _take(self, tables: Tables) -> None:
        with self._changed:
            changes = self.tables.take(tables)
            if changes is None:
                return
            self._seen, self._identity, self._coordinator = tables.newest, tables.site_identity, tables.coordinator
        # It counts as stored from the next question on: by then those who use the tables have acted.
        self._write()
        self._on_change(changes)
        with self._changed:
            self._settle()

    def _extend(self, sent_us: int, reply: dict[str, Any]) -> None:
        """The lease counts from the moment at which the question was sent."""
        until_us = sent_us + encoding.number_of(reply.get("lease_us"))
        with self._changed:
            if until_us <= self._lease_until_us:
                return
            self._lease_until_us = until_us
        self._on_lease(until_us)

    def _note_away(self, error: PywanError) -> None:
        with self._changed:
            self._has_tried = True
            if self._stopping:
                return
            if not self._problem and not isinstance(error, NotFoundError):
                log.warning(
                    "member %s: coordinator %s is away: %s; the member goes on, and what needs a decision waits",
                    self.name,
                    self._coordinator or "(unknown)",
                    error,
                )
            self._problem = str(error)
            self._away_since = self._away_since or time.time()
            self._changed.notify_all()

    # --- the file ---

    def _read(self, file: Path) -> None:
        if not file.exists():
            return
        try:
            value = json.loads(read_regular(file, MAX_FILE_BYTES, follow=False).data.decode())
            self._coordinator = check_name(value["coordinator"], "a coordinator")
            self._identity = str(value["site_identity"])
            self._seen = encoding.decision_id_of(value["seen"])
        except (FileError, OSError, ValueError, KeyError, TypeError, PywanError) as error:
            raise ConfigurationError(
                f"member {self.name}: {file} cannot be used: {error}; move it away: the member then joins its site as a"
                " new one"
            ) from None

    def _write(self) -> None:
        """Keeps what a later incarnation of this member tells the coordinator."""
        if self._file is None:
            return
        with self._changed:
            value = {
                "coordinator": self._coordinator,
                "site_identity": self._identity,
                "seen": encoding.plain_decision_id(self._seen),
            }
        try:
            write_whole(self._file, json.dumps(value).encode())
        except OSError as error:
            log.error(
                "member %s: %s cannot be written: %s; a coordinator that loses its file does not learn from this member"
                " that it has",
                self.name,
                self._file,
                error.strerror,
            )


class _Client(ControlClient):
    """A connection to the coordinator. News and requests have one each, so that no request waits for news."""

    def __init__(self, use: str, address: Address) -> None:
        super().__init__(address, CALL_TIMEOUT_S, what="locator")
        self.use = use


__all__ = ["Agent", "SiteTables"]

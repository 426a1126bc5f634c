"""Owns what must hold of the events of a simulated site: what leaves counts, each receiver gets the events of a key in
their order, and at rest remote sites have all that was answered, and the queues of all members are equal or empty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pywan import GatewayEventFilter, _core
from pywan.config.attributes import SenderAttributes
from pywan.coordination.tables import BucketKey
from pywan.member.sender_roles import role_name
from support.linearizability import Operation

from .drops import Drops
from .member import Member
from .shown import changelog_of, number_in
from .threads import Threads

if TYPE_CHECKING:
    from .remote import RemoteSite, Version
    from .senders import MemberSenders, SimulatedSender
    from .world import SiteWorld


class Watching(GatewayEventFilter):
    """The filter of one sender, at all members: it lets no event of one key leave, and is told of no event that the
    remote site did not get. An error in a filter is logged only, so it notes what is wrong."""

    def __init__(self, events: Events, made: SenderAttributes, refused: str | None) -> None:
        self._events, self._site, self.refused = events, made.remote_distributed_system_id, refused
        self._conflates = made.enable_batch_conflation
        events.refused_keys[self._site] = refused

    def before_transmit(self, event: Any) -> bool:
        is_refused = event.key == self.refused
        self._events.world.statistics["events that a filter refused"] += is_refused
        return not is_refused

    def after_acknowledgement(self, event: Any) -> None:
        world, number = self._events.world, number_in(event.value)
        world.statistics["acknowledgements that members were told of"] += 1
        if event.key == self.refused:
            self._events.wrong.append(f"{event} is told as acknowledged, and was never sent")
        if number is None or self._events.is_excused(event.region, event.key):
            return
        if self._conflates:  # Another member may have sent a newer event in its place. The receiver has both then.
            return
        got = self._events.sites[self._site].values[event.region, event.key]
        if number not in got:
            self._events.wrong.append(f"{event} is told as acknowledged, and did not come to site {self._site}")


class Events:
    def __init__(self, world: SiteWorld, made: Sequence[SenderAttributes]) -> None:
        self.world, self.made = world, made
        self.sites: dict[int, RemoteSite] = {}  # By their numbers.
        # What filters and receiving regions have seen. Whatever they raise, the core logs and goes on.
        self.wrong: list[str] = []
        self.refused_keys: dict[int, str | None] = {}  # By site: the key of which a filter lets nothing leave.
        self.senders: dict[str, tuple[Member, MemberSenders]] = {}  # Of each member that lives, by its name.
        # By sender: since when it is attached on all members. The others have been since the beginning.
        self.since_us: dict[str, int] = {}
        self.drops, self.threads = Drops(world), Threads(world)
        self._peeked: dict[tuple[Member, str, int], int] = {}  # By sender and partition: how far it was seen.

    # While it runs

    def moved(self, member: Member) -> None:
        """A member has worked. It drops events only if the sender does not run there, and a serial one only if it runs
        nowhere, as far as the member knows."""
        self.world.must(not self.wrong, "; ".join(self.wrong[:3]))
        held, senders = self.senders.get(member.name, (None, None))
        if held is not member or senders is None:
            return
        for each in senders.by_id.values():
            dropped = self.drops.look(each)
            self.world.statistics["events dropped where no sender ran"] += dropped
            self.world.must(
                not dropped or each.attributes.parallel or not senders.runs_on_others(each.attributes),
                f"{member.me} drops events of {each.id}, which runs on another member",
            )

    def ended(self, member: Member) -> None:
        """A member has ended, with what was in its queues."""
        held, senders = self.senders.get(member.name, (None, None))
        if held is member and senders is not None:
            self.check_ledgers()
            del self.senders[member.name]
            for each in senders.by_id.values():
                self.drops.end(each)

    def see_peeked(self, sender: SimulatedSender) -> None:
        """A dispatcher has sent something. Whatever was taken out of the queue for that counts: every in-sync replica
        has it."""
        positions, member = sender.queue.positions(), sender.member
        for region, first, count in sender.queue.runs():
            core = member.regions.get(region)
            changelog = None if core is None or sender.queue.run_of(region) != first else core.changelog
            for bucket in range(count if changelog is not None else 0):
                removed, peeked, _ = positions[first + bucket]
                place = member, sender.id, first + bucket
                before, self._peeked[place] = self._peeked.get(place, 0), peeked
                if peeked > max(before, removed) and changelog is not None:  # Otherwise another member has settled it.
                    self._see_that_it_is_stable(member, BucketKey(region, bucket), changelog, peeked)

    def _see_that_it_is_stable(self, member: Member, key: BucketKey, changelog: Any, peeked: int) -> None:
        world, state = self.world, changelog.state(key.number)
        world.statistics["batches looked at"] += 1
        timeline, high_watermark = state["timeline"], state["high_watermark"]
        world.must(
            peeked <= high_watermark,
            f"{member.me} sends {key} through {peeked}, where only {high_watermark} counts: it leaves early",
        )
        core, known = world.coordinator.core, member.agent.tables.buckets.get(key)
        bucket = core.site.buckets.get(key)
        is_known = (
            bucket is not None and known is not None and bucket.timeline == timeline and bucket.version >= known.version
        )
        if not is_known or key in world.watch.unchecked or core.grace_period.is_on or key in core.reports.undecided:
            return
        assert bucket is not None
        for each in bucket.isr:
            there = changelog_of(world.network.nodes.get(each), key)
            if there is not None and there.state(key.number)["timeline"] == timeline:
                last = there.state(key.number)["log_end"]
                world.must(
                    last >= peeked, f"{member.me} sends {key} through {peeked}, and {each}, in sync, ends at {last}"
                )

    def see_order(
        self, site: RemoteSite, region: str, key: str, version: Version, before: list[Version], *, is_marked: bool
    ) -> None:
        """A receiver applies an event of a key. It is later than all that this receiver had of the key; or it was there
        before, and is marked."""
        if self.is_excused(region, key) or site.refused[region, key]:  # Replayed events come behind newer ones.
            return
        is_later = not before or version > max(before)
        if not is_later and not (is_marked and version in before):
            self.wrong.append(
                f"{site.name} gets version {version} of {key} in {region}{' marked' if is_marked else ''} behind"
                f" version {max(before, default=None)}: a key's events come out of order"
            )
        self.world.statistics["events repeated"] += not is_later

    def is_excused(self, region: str, key: str) -> bool:
        """Whether the key's bucket has lost all its replicas once, or decisions about it were lost."""
        watch = self.world.watch
        bucket = BucketKey(region, self.world.keys.bucket_of(key))
        return bucket in watch.unchecked or bucket in watch.begun_anew

    def refused(self, site: RemoteSite, why: str) -> None:
        """A receiver gives a connection up."""
        self.world.note(f"{site.name} gives a connection up: {why}")
        self.world.must("a gap before" not in why, f"{site.name} gets events with a gap: {why}")
        self.world.statistics["connections that receivers gave up"] += 1

    def connection_given_up(self, sender: SimulatedSender, why: str) -> None:
        self.world.note(f"{sender.member.me} gives a connection of {sender.id} up: {why}")
        self.world.statistics["connections that senders gave up"] += 1

    # At rest

    def _all(self) -> list[SimulatedSender]:
        return [each for _, senders in self.senders.values() for each in senders.by_id.values()]

    def unrest(self) -> str:
        """Why the senders are not at rest; empty: they are."""
        core = self.world.coordinator.core
        for member in self.world.members.values():
            if member.name not in self.senders:
                return f"{member.me} has no senders"
        for made in self.made:
            role = core.site.buckets.get(BucketKey(role_name(made.id), 0))
            if role is None or role.primary is None:
                return f"sender {made.id} has no primary"
        for each in self._all():
            if not self.sites[each.remote_site].is_shut and (len(each.queue) or self._rests_not(each)):
                counts = each.queue.counts()
                return (
                    f"{each.member.me} has {len(each.queue)} queued events of {each.id}, sends"
                    f" {each.local_queue_size} of them, and {len(each.parked)} are parked: {counts};"
                    f" {each.queue.positions()} {each.queue.streams()}; parked: {self._kept(each.id)}"
                )
        return ""

    def _rests_not(self, sender: SimulatedSender) -> bool:
        """Whether events are parked, and the remote site takes them; or holders do not keep the same ones."""
        if self.sites[sender.remote_site].refused_key is None:
            return len(sender.parked.queue) > 0
        return any(len(set(each.values())) > 1 for each in self._kept(sender.id).values())

    def _kept(self, id: str) -> dict[BucketKey, dict[str, frozenset[tuple[str, int, int]]]]:
        """Returns the parked events of each bucket at each holder that has the sender, as (key, stamp, site)."""
        found: dict[BucketKey, dict[str, frozenset[tuple[str, int, int]]]] = {}
        records: dict[str, dict[BucketKey, set[tuple[str, int, int]]]] = {}
        for name, (_, senders) in self.senders.items():
            of_member = records[name] = defaultdict(set)
            for _, _, record in senders.by_id[id].parked.queue.records(1 << 30):
                key, region, version = self._named(record)
                of_member[BucketKey(region, self.world.keys.bucket_of(key))].add((key, *version))
        for attributes in self.world.regions:
            for number in range(self.world.keys.buckets if id in attributes.gateway_sender_ids else 0):
                place = BucketKey(attributes.name, number)
                bucket = self.world.coordinator.core.site.buckets[place]
                found[place] = {
                    each.name: frozenset(records[each.name][place]) for each in bucket.isr if each.name in records
                }
        return found

    @staticmethod
    def _named(record: bytes) -> tuple[str, str, Version]:
        fields = _core.record_fields(record)
        return (
            str(_core.decode_object(*fields["key"])),
            str(_core.region_name(fields["region"])),
            (fields["stamp"], fields["stamp_site"]),
        )

    def check_parked(self) -> None:
        """Whatever a remote site refused is parked once, as the members count it, and each holder keeps it."""
        for made in self.made:
            site = self.sites[made.remote_distributed_system_id]
            counted: defaultdict[tuple[str, str], list[Version]] = defaultdict(list)
            for _, senders in self.senders.values():
                for record, _ in senders.by_id[made.id].parked.records(1 << 30):
                    key, region, version = self._named(record)
                    counted[region, key].append(version)
            for place, versions in counted.items():
                self.world.must(
                    len(set(versions)) == len(versions), f"{made.id} counts a parked event of {place} twice: {versions}"
                )
            for place, refused in site.refused.items():
                if self.is_excused(*place) or site.refused_key is None or made.enable_batch_conflation:
                    continue
                lost = refused - set(counted[place])
                self.world.statistics["parked events compared"] += len(refused)
                self.world.must(not lost, f"{made.id} lost parked events of {place}: {sorted(lost)} of {len(refused)}")

    def check_ledgers(self) -> None:
        for each in self._all():
            self.world.must(each.balances, f"the ledger of {each.id} at {each.member.me}: {each.queue.counts()}")

    def check_replicas(self) -> None:
        """Nothing is sent. All replicas of a bucket have the same events, as long as their queues begin at one
        place."""
        for made in self.made:
            if made.id in self.since_us:  # Members attached it at different times.
                continue
            for attributes in self.world.regions:
                if made.id in attributes.gateway_sender_ids:
                    for number in range(self.world.keys.buckets):
                        self._check_replicas_of(made.id, BucketKey(attributes.name, number))

    def _check_replicas_of(self, id: str, key: BucketKey) -> None:
        found: dict[str, list[tuple[int, int]]] = {}
        bucket = self.world.coordinator.core.site.buckets[key]
        for each in bucket.isr:
            _, senders = self.senders[each.name]
            queue = senders.by_id[id].queue
            first = queue.run_of(key.region)
            if first is None:  # The member has all of the region by itself.
                return
            if queue_conflates(senders.by_id[id]):  # What is replaced depends on what was on its way.
                return
            found[each.name] = [
                (sequence, _core.record_fields(record)["stamp"])
                for partition, sequence, record in queue.records(1 << 30)
                if partition == first + key.number and not self._leaves_before_others(id, record)
            ]
        self.world.statistics["queues compared"] += len(found) > 1
        self.world.statistics["events compared"] += sum(map(len, found.values()))
        first = next(iter(found.values()))
        differ = {name: sorted(set(each) ^ set(first)) for name, each in found.items() if each != first}
        self.world.must(
            not differ, f"the queues of {id} of the replicas of {key} differ, of {len(first)} events in these: {differ}"
        )

    def _leaves_before_others(self, id: str, record: bytes) -> bool:
        """Whether an event may leave one queue before those in front of it: a remote site refused an event of that key,
        and a holder may have heard that one is parked, from a member that ended before another holder heard it; or a
        filter let it not leave, and the members that do not send hear that with the events in front of it."""
        made = next(each for each in self.made if each.id == id)
        key, region, _ = self._named(record)
        site = made.remote_distributed_system_id
        return bool(self.sites[site].refused[region, key]) or key == self.refused_keys.get(site)

    def check_sites(self) -> None:
        """The remote sites have what the site has, and got all that was answered, but for what was dropped because no
        sender ran."""
        for made in self.made:
            missed = [
                missing
                for attributes in self.world.regions
                if made.id in attributes.gateway_sender_ids
                for of in self.world.keys.names
                for missing in self._missing(made, self.sites[made.remote_distributed_system_id], attributes.name, of)
            ]
            self.world.must(not missed, f"of {made.id}, which dropped none of this: {'; '.join(missed)}")

    def _missing(self, made: SenderAttributes, site: RemoteSite, region: str, of: str) -> list[str]:
        """Says what of a key did not come to a remote site: the changes that were answered, and the last one."""
        world = self.world
        if of == self.refused_keys.get(site.number):
            world.must(not site.values[region, of], f"{site.name} got {of} of {region}, which a filter refused")
            return []
        if BucketKey(region, world.keys.bucket_of(of)) in world.watch.unchecked:
            # A history that nobody knew of may have given the same sequences in this timeline. The receiver skips them.
            world.statistics["keys of forks not compared"] += 1
            return []
        bucket = world.coordinator.core.site.buckets[BucketKey(region, world.keys.bucket_of(of))]
        primary = world.network.nodes[bucket.primary]
        here, there = _entry(primary.regions[region], of), _entry(site.regions[region], of)
        is_excused = self.is_excused(region, of)
        dropped = self.drops.of(made.id, region, of)
        if made.id in self.since_us and not self._is_since(made, region, of, here):
            return []
        is_behind = here is not None and (there is None or there[:2] < here[:2])
        # A timeline that is over may have had a change that was stamped by a clock that was ahead.
        world.must(
            here == there or is_behind or is_excused,
            f"{site.name} has {there} of {of} in {region}, and the site {here}: they differ",
        )
        is_dropped = is_behind and here is not None and here[:2] in dropped
        world.statistics["newest changes that were dropped"] += is_dropped
        behind = [f"{site.name} has {there} of {of} in {region}, and the site {here}"]
        behind = behind if is_behind and not is_dropped else []
        if is_excused:
            return behind or self._lost_with_replicas(made, site, region, of)
        if made.enable_batch_conflation:
            return behind
        since_us = self.since_us.get(made.id, 0)
        puts = [each for each in world.history[region, of] if _has_put(each) and each.called > since_us]
        operations = {each.arguments[-1]: each for each in puts}
        answered = {*operations}
        world.statistics["changes since a sender was attached that came"] += len(answered) if since_us else 0
        world.statistics["keys compared"] += 1
        world.statistics["answered changes that came"] += len(answered)
        never = sorted(answered - site.values[region, of] - {*dropped.values()}, key=str)
        never = [each for each in never if not self.drops.take_overwritten(made.id, operations[each])]
        return [f"{site.name} never got {each} of {of} in {region}, which was answered" for each in never] or behind

    def _is_since(self, made: SenderAttributes, region: str, of: str, here: tuple[int, int, int | None] | None) -> bool:
        """Returns whether the site's version of a key was put after the sender was attached on all members."""
        since_us, number = self.since_us[made.id], None if here is None else here[2]
        return (
            number is not None
            and any(
                each.called > since_us and each.name != "remove"  # A `remove` names the value that leaves.
                for each in self.world.history[region, of]
                if number in each.arguments[-1:]
            )
        )

    def _lost_with_replicas(self, made: SenderAttributes, site: RemoteSite, region: str, of: str) -> list[str]:
        """Says which answered changes of a key never came to a remote site, though a member had them in a serial
        sender's queue when all replicas of the bucket were lost, and lives."""
        world, missed = self.world, []
        bucket = BucketKey(region, world.keys.bucket_of(of))
        if made.parallel or made.enable_batch_conflation or world.statistics.get("files") or made.id in self.since_us:
            return []
        since_us = 0
        for lost_us, holders in world.watch.losses[bucket]:
            if holders & {each.me for each in world.members.values() if not each.is_dead}:
                answered = {
                    each.arguments[-1]
                    for each in world.history[region, of]
                    if _has_put(each) and since_us <= each.called and each.returned <= lost_us
                }
                world.statistics["answered changes that outlived their replicas"] += len(answered)
                missed += [
                    f"{site.name} never got {each} of {of} in {region}, which {', '.join(map(str, holders))} held"
                    for each in sorted(
                        answered - site.values[region, of] - {*self.drops.of(made.id, region, of).values()}, key=str
                    )
                ]
            since_us = lost_us
        return missed


def queue_conflates(sender: SimulatedSender) -> bool:
    return bool(sender.attributes.enable_batch_conflation)


def _entry(region: Any, of: str) -> tuple[int, int, int | None] | None:
    found = region.lookup(of)
    return None if found is None else (found[1], found[2], number_in(found[0]))


def _has_put(operation: Operation) -> bool:
    """Whether it was answered, and put its value."""
    if operation.is_unknown or not operation.arguments:
        return False
    match operation.name, len(operation.arguments):
        case "put", _:
            return True
        case "put_if_absent", _:
            return operation.answer is None
        case "replace", 1:
            return operation.answer is not None
        case "replace", 2:
            return operation.answer is True
    return False

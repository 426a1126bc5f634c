"""A sender's filters that let all events pass, each beside the same work without the filter, in processor time of the
thread that works: events a second of before_enqueue and of a substitution filter (columns and single puts into a proxy
region that feeds a sender which is not connected), of before_transmit (batches laid out), of after_acknowledgement
(batches acknowledged).

16-byte keys, 100-byte values, batches of 1,000. The methods are in Python and read nothing of the event. `--quick` for
a short run."""

from __future__ import annotations

import tempfile
from typing import Any

import pywan
from measure import arguments, cpu_seconds, in_turn, key_column, report, value_column
from pieces import Acknowledge, Batch, Sending
from pywan import GatewayEventFilter, GatewayEventSubstitutionFilter, _core


class Enqueue(GatewayEventFilter):
    def before_enqueue(self, event: Any) -> bool:
        return True


class Every(GatewayEventFilter):
    """The methods that a dispatcher calls."""

    def before_transmit(self, event: Any) -> bool:
        return True

    def after_acknowledgement(self, event: Any) -> None:
        pass


class Mask(GatewayEventSubstitutionFilter):
    def get_substitute_value(self, event: Any) -> bytes:
        return b"masked"


class Put:
    """Puts into a proxy region whose sender is not connected."""

    def __init__(self, cache: pywan.Cache, name: str, rows: int, **filters: Any) -> None:
        self.sender = cache.create_gateway_sender(
            name, remote_distributed_system_id=2, dispatcher_threads=1, maximum_queue_memory=2000, **filters
        )
        self.region = cache.create_region(name, type="REPLICATE_PROXY", gateway_sender_ids=[name])
        self.keys, self.values = key_column(rows), value_column(rows)
        self.key_objects, self.value = self.keys.tolist(), bytes(self.values[0])

    def columns(self) -> float:
        return self._rate(lambda: self.region.put_columns(self.keys, self.values))

    def single(self) -> float:
        def work() -> None:
            put, value = self.region.put, self.value
            for key in self.key_objects:
                put(key, value)

        return self._rate(work)

    def _rate(self, work: Any) -> float:
        taken = cpu_seconds(work)
        self.sender.stop()
        self.sender.start(clean_queues=True)
        return len(self.keys) / taken


def puts(rounds: int, rows: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        pywan.Locator("one", distributed_system_id=1, port=0) as locator,
        pywan.Cache("member", locators=str(locator.address), dir=folder) as cache,
    ):
        plain = Put(cache, "plain", rows)
        asked = Put(cache, "asked", rows, gateway_event_filters=[Enqueue()])
        masked = Put(cache, "masked", rows, gateway_event_substitution_filter=Mask())
        report("before_enqueue, columns", *in_turn(rounds, asked.columns, plain.columns), "without a filter")
        report("before_enqueue, single puts", *in_turn(rounds, asked.single, plain.single), "without a filter")
        report("substitution, columns", *in_turn(rounds, masked.columns, plain.columns), "without a filter")


def dispatcher(rounds: int) -> None:
    every = Every()
    transmit = _core.EventFilters(before_transmit=[every.before_transmit])
    acknowledgement = _core.EventFilters(after_acknowledgement=[every.after_acknowledgement])
    side_by_side("before_transmit", rounds, Batch(), Batch(), transmit)
    side_by_side("after_acknowledgement", rounds, Acknowledge(), Acknowledge(), acknowledgement)


def side_by_side(name: str, rounds: int, asked: Sending, plain: Sending, filters: _core.EventFilters) -> None:
    def rate(piece: Sending) -> float:
        piece.prepare()
        return piece.events / cpu_seconds(piece.run)

    asked.dispatcher.set_filters(filters)
    report(name, *in_turn(rounds, lambda: rate(asked), lambda: rate(plain)), "without a filter")
    asked.close()
    plain.close()


def main() -> None:
    options = arguments(__doc__)
    puts(options.rounds, options.size(100_000, 20_000, 2_000))
    dispatcher(options.rounds)


if __name__ == "__main__":
    main()

"""The same two sites with a link of 100 ms round trip and 1 Gbit/s between them, beside the same link without delay.
The link is a proxy in a process of its own.

16-byte keys, 100-byte values, batches of 1,000. `--quick` for a short run."""

from __future__ import annotations

from measure import arguments, in_turn, key_column, report, value_column
from two_sites import TwoSites, two_sites

GIGABIT = 1e9


def main() -> None:
    options = arguments(__doc__)
    events = options.size(6_000_000, 2_000_000, 100_000)
    rounds = options.size(min(options.rounds, 5), 1, 1)
    keys, values = key_column(options.keys), value_column(options.keys)
    with two_sites(proxy=True) as sites:
        sender = sites.sender("ln", batch_size=1_000, batch_time_interval=5)
        sites.use(sender)

        def over(round_trip_ms: float) -> float:
            sites.link(round_trip_ms=round_trip_ms, bits_per_s=GIGABIT)
            return sites.send_all(sender, keys, values, events, ahead=500_000)

        warm_up(sites, keys, values, sender)
        report(
            "1 Gbit/s, 100 ms round trip",
            *in_turn(rounds, lambda: over(100), lambda: over(0), warm_up=not options.quick),
            "the same link without delay",
            "90%",
        )
        assert sites.remote_keys() == len(keys) and sender.ledger()["balanced"]


def warm_up(sites: TwoSites, keys, values, sender) -> None:
    """Every key once over a link without limits, so that no round is the one that creates them."""
    sites.region.put_columns(keys, values)
    assert sender.wait_until_flushed(120)


if __name__ == "__main__":
    main()

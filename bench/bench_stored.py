"""Two processes that store at both ends, what a user has: a million keys that come in random order, columns of 10,000
rows. Beside two bare C processes that store at both ends too. Says what an event costs and who pays it, and what the
threads do the rest of the time.

16-byte keys, 100-byte values, batches of 1,000, one dispatcher. `--quick` for a short run."""

from __future__ import annotations

import os

import numpy

from measure import Rates, Threads, arguments, c_program, in_turn, numbered_keys, report, value_column
from two_sites import Child, TwoSites, two_sites

BATCH = 1_000


def shares(did: dict[tuple[int, int], tuple[float, float, float]]) -> dict[str, tuple[float, float, float]]:
    """Of what `Threads.look` saw: seconds (on a core, ready without one, asleep) of who puts, dispatches and
    receives.
    """
    roles = {"put": (0.0, 0.0, 0.0), "dispatch": (0.0, 0.0, 0.0), "receive": (0.0, 0.0, 0.0)}
    for (pid, tid), times in did.items():
        role = "put" if pid == tid == os.getpid() else ("dispatch" if pid == os.getpid() else "receive")
        if times[0] > roles[role][0]:  # The busiest thread of each: the others look after the member.
            roles[role] = times
    return roles


def random_order(sites: TwoSites, count: int) -> numpy.ndarray:
    """Fills both tables in the order of the keys, and gives the keys in another one."""
    filled = sites.sender("fill", batch_size=BATCH, batch_time_interval=5)
    sites.use(filled)
    sites.send_all(filled, numbered_keys(numpy.arange(count)), value_column(count), count)
    return numbered_keys(numpy.random.default_rng(7).permutation(count))


def main() -> None:
    options = arguments(__doc__)
    events = options.size(5_000_000, 1_000_000, 40_000)
    bare = Child(c_program("bare_stored"), str(events), str(BATCH), str(options.keys))
    values = value_column(options.keys)
    try:
        with two_sites(stores=True) as sites:
            keys = random_order(sites, options.keys)
            sender = sites.sender("ln", batch_size=BATCH, batch_time_interval=5)
            sites.use(sender)
            threads = Threads(*sites.pids)
            spent: list[dict[str, tuple[float, float, float]]] = []
            theirs: list[float] = []

            def subject() -> float:
                threads.look()
                rate = sites.send_all(sender, keys, values, events)
                spent.append(shares(threads.look()))
                return rate

            def reference() -> float:
                rate, *cpu_ns = map(float, bare.ask().split())
                theirs.append(sum(cpu_ns))
                return rate

            report("stored at both ends", *in_turn(options.rounds, subject, reference), "two bare C processes", "60%")
            del spent[0], theirs[0]

            def ns(role: str) -> Rates:
                return Rates([round_[role][0] / events * 1e9 for round_ in spent])

            all_ns = Rates([sum(times[0] for times in round_.values()) / events * 1e9 for round_ in spent])
            report("the same, processor time", all_ns, Rates(theirs), "both processes of each", "", "ns an event")
            for role in ("put", "dispatch", "receive"):
                wall = [sum(round_[role]) for round_ in spent]
                parts = [
                    Rates([round_[role][n] / whole for round_, whole in zip(spent, wall, strict=True)])
                    for n in range(3)
                ]
                print(
                    f"  {role:<9} {ns(role):5.0f} ns an event; on a core {parts[0]:.0%} of the time, ready without one"
                    f" {parts[1]:.0%}, asleep {parts[2]:.0%}",
                    flush=True,
                )
            assert sites.remote_keys() == options.keys, "the remote site has not all keys"
            assert sender.ledger()["balanced"] and sender.queue_size == 0
    finally:
        bare.end()


if __name__ == "__main__":
    main()

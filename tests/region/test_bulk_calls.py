"""`put_all`, `update`, `remove_all` and `get_all` do what a loop of single calls does: the same values, the same events
in the same order, and the same refusals, whatever the entries are and however they come."""

from __future__ import annotations

import collections
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import pywan
from pywan import _core, serializers
from pywan.errors import BatchError, ConfigurationError, EventTooLargeError, QueueFullError, SerializationError
from pywan.testing.waiting import LIMIT_S
from support.fed_queues import lead, queue_to, queued
from support.records import RECORD_BYTES, read_head
from support.shared_site import SharedSite

BUCKETS = 2
LONG = bytes(5 << 20)  # It does not fit into a queue without memory.
MANY = 700  # More than wait together.


class Registered:
    """Its encoding runs code of users: `look` at each one."""

    look: Callable[[Any], None] = staticmethod(lambda content: None)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __repr__(self) -> str:
        return f"Registered({self.content!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registered) and other.content == self.content

    __hash__ = None

    @staticmethod
    def written(value: Registered) -> bytes:
        Registered.look(value.content)
        return str(value.content).encode()


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    serializers.register_serializer(
        Registered, Registered.written, lambda data: Registered(data.decode()), name="test-bulk"
    )
    yield


@pytest.fixture(autouse=True)
def _nobody_looks() -> Iterator[None]:
    yield
    Registered.look = staticmethod(lambda content: None)


class Alone:
    """A region of one member, and the queue of its sender."""

    def __init__(self, count: int = 1, **options: Any) -> None:
        """`count`: how many queues there are. `options`: of the queues."""
        self.core = _core.RegionCore("r", _core.Clock(), site=1, member=1)
        self.face = _core.RegionFace(self.core)
        self.queues = [_core.EventQueue(f"ln{n}", remote_site=2 + n, **options) for n in range(count)]
        for queue in self.queues:
            queue.running = True
            queue.set_full_policy("refuse")
        self.core.attach(self.queues)

    def events(self) -> list[Any]:
        """The events without what differs between two regions: the stamps, and the number of the region."""
        found = []
        for queue in self.queues:
            for _partition, _sequence, record in queue.records(1_000_000):
                head = read_head(record)
                kept = ("operation", "key_form", "value_form", "callback_form", "key_length", "value_length", "flags")
                found.append((*(head[name] for name in kept), bytes(record[RECORD_BYTES:])))
            sequences = [read_head(record)["event_sequence"] for _, _, record in queue.records(1_000_000)]
            assert sequences == sorted(set(sequences)), "each event has the next identity of its thread"
        return found

    def content(self) -> dict[Any, Any]:
        return {key: self.core.show(key) for key in self.core.scan_keys()}


# Loops of single calls


def put_each(region: Any, entries: Any, argument: Any = None) -> None:
    failures, row = [], -1
    pairs = entries.items() if isinstance(entries, collections.abc.Mapping) else entries
    for row, pair in enumerate(pairs):
        try:
            key, value = pair
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"region 'r': entry {row} is no pair of a key and a value: {pair!r:.80} (the entries before it were"
                " stored)"
            ) from None
        try:
            region.put(key, value, argument)
        except QueueFullError as error:
            refused = failures and f", but for {len(failures)} that were refused; first: entry {failures[0][0]}: "
            raise type(error)(
                f"put_all stopped at entry {row}: {error} (the entries before it were stored"
                f"{refused + failures[0][1] if failures else ''})"
            ) from error
        except (TypeError, ValueError) as error:
            reason = str(error).removesuffix(" (nothing was stored)").removesuffix("; nothing was stored")
            failures.append((row, reason))
    if failures:
        raise BatchError(
            f"region 'r': {len(failures)} of {row + 1} entries were refused, the others were stored; first: entry"
            f" {failures[0][0]}: {failures[0][1]}",
            failures,
            row + 1 - len(failures),
        )


def remove_each(region: Any, keys: Iterable[Any], argument: Any = None) -> int:
    removed = 0
    for key in keys:
        try:
            region.destroy(key, argument)
            removed += 1
        except KeyError:
            pass
        except QueueFullError as error:
            raise type(error)(
                f"remove_all stopped at key {key!r}: {error} ({removed} were destroyed before)"
            ) from error
    return removed


def get_each(region: Any, keys: Iterable[Any]) -> dict[Any, Any]:
    return {key: region.get(key) for key in keys}


def became(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call returned, or how it failed."""
    try:
        return call(*arguments)
    except Exception as error:
        return type(error), str(error), getattr(error, "failures", None), getattr(error, "applied", None)


def named(outcome: Any) -> str:
    """As text: two objects of equal content may differ, as NaN and undecodable values do."""
    return repr(outcome).replace(" at 0x", " ")


keys = st.one_of(
    st.integers(0, 20).map(lambda n: f"key{n}"),
    st.integers(0, 20).map(lambda n: b"%016d" % n),
    st.sampled_from([0, 1, -5, 2**70, 0.5, ("a", 1), ("a", (2, b"b")), "größe", b"", "x" * 300]),
    st.sampled_from([None, "\ud800", "", b"k" * 70_000, ("a", ["list"]), True]),
)
plain_values = st.one_of(
    st.binary(max_size=120),
    st.text(max_size=20),
    st.sampled_from([None, 0, -1, 2**63 - 1, 2**63, -(2**70), 1.5, True, b"", "größe", "\ud800", {}, [], (1, 2)]),
    st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), st.none()), max_size=4),
)
odd_values = st.sampled_from(
    [object, {"in": object}, LONG, b"x" * (61 << 20), {1, 2}, Registered("one"), {"of a user": Registered("two")}]
)
values = st.one_of(plain_values, plain_values, plain_values, odd_values)
entries_of = st.lists(st.tuples(keys, values), max_size=40)
arguments = st.sampled_from([None, None, None, b"why", {"by": "me"}, 7, 0.5, Registered("a"), b"x" * 70_000, object])
forms: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "generator": lambda entries: (entry for entry in entries),
    "lists": lambda entries: [list(entry) for entry in entries],
    "dict": dict,
    "items": lambda entries: dict(entries).items(),
    "ordered": collections.OrderedDict,
    "no pair in the middle": lambda entries: [*entries[:5], 5, *entries[5:]],
    "three in the middle": lambda entries: [*entries[:5], (1, 2, 3), *entries[5:]],
}


@settings(max_examples=300, deadline=None)
@given(entries=entries_of, argument=arguments, form=st.sampled_from(sorted(forms)), queues=st.integers(0, 2))
def test_put_all_does_what_a_loop_does(entries: list[Any], argument: Any, form: str, queues: int) -> None:
    if form in ("dict", "items", "ordered"):
        entries = [(key, value) for key, value in entries if not isinstance(key, tuple) or key != ("a", ["list"])]
    bulk, loop = Alone(queues, memory_limit=1 << 20), Alone(queues, memory_limit=1 << 20)
    expected = became(put_each, loop.core, forms[form](entries), argument)
    assert named(became(bulk.face.put_all, forms[form](entries), argument)) == named(expected)
    assert bulk.events() == loop.events()
    assert named(bulk.content()) == named(loop.content())


@settings(max_examples=150, deadline=None)
@given(
    entries=entries_of,
    gone=st.lists(keys, max_size=30),
    argument=arguments,
    form=st.sampled_from(["list", "tuple", "generator"]),
    queues=st.integers(0, 2),
)
def test_remove_all_and_get_all_do_what_loops_do(
    entries: list[Any], gone: list[Any], argument: Any, form: str, queues: int
) -> None:
    bulk, loop = Alone(queues), Alone(queues)
    for each in (bulk, loop):
        became(put_each, each.core, [(key, value) for key, value in entries if value is not LONG])
    assert named(became(bulk.face.get_all, forms[form](gone))) == named(became(get_each, loop.core, gone))
    assert named(became(bulk.face.remove_all, forms[form](gone), argument)) == named(
        became(remove_each, loop.core, forms[form](gone), argument)
    )
    assert bulk.events() == loop.events()
    assert named(bulk.content()) == named(loop.content())


@pytest.mark.parametrize("kept", ["bytes", "dicts", "numbers"])
@pytest.mark.parametrize("queues", [0, 1, 2])
def test_many_entries_are_stored_and_read_and_destroyed_in_their_order(kept: str, queues: int) -> None:
    values: dict[str, Callable[[int], Any]] = {
        "bytes": lambda n: b"%d" % n,
        "dicts": lambda n: {"id": n, "name": f"name {n}", "tags": ["a", n]},
        "numbers": lambda n: n if n % 2 else n / 4,
    }
    entries = [(f"key{n % 500}" if n % 3 else n, values[kept](n)) for n in range(MANY)]
    bulk, loop = Alone(queues), Alone(queues)
    bulk.face.update(entries)
    put_each(loop.core, entries)
    assert bulk.events() == loop.events() and bulk.content() == loop.content()
    names = [key for key, _ in entries] + ["absent"]
    assert list(bulk.face.get_all(names).items()) == list(get_each(loop.core, names).items())
    assert bulk.face.remove_all(names) == remove_each(loop.core, names) == len(set(names)) - 1
    assert bulk.events() == loop.events() and not bulk.content()


def test_update_takes_its_names_behind_its_entries() -> None:
    bulk = Alone()
    bulk.face.update({"a": 1, "b": 2}, b=3, c=4)
    bulk.face.update(d=5)
    bulk.face.update()
    assert bulk.content() == {"a": 1, "b": 3, "c": 4, "d": 5} and len(bulk.events()) == 5
    with pytest.raises(BatchError) as caught:
        bulk.face.update([("a", object()), ("b", 7)], c=object(), d=8)
    assert [row for row, _ in caught.value.failures] == [0, 2] and caught.value.applied == 2


def test_entries_before_one_without_room_are_stored_and_those_behind_it_are_not() -> None:
    bulk = Alone(memory_limit=0)
    entries = {f"key{n}": LONG if n == 400 else n for n in range(MANY)}
    with pytest.raises(QueueFullError, match=r"put_all stopped at entry 400: .*entries before it were stored"):
        bulk.face.put_all(entries)
    assert bulk.content() == {f"key{n}": n for n in range(400)} and len(bulk.events()) == 400


# What runs code of users


def test_code_of_users_sees_all_entries_before_its_own() -> None:
    bulk, seen = Alone(), []
    Registered.look = staticmethod(lambda content: seen.append((content, len(bulk.core))))
    bulk.face.put_all([(n, {"nested": Registered(n)} if n % 100 == 7 else n) for n in range(MANY)])
    assert seen == [(n, n) for n in range(7, MANY, 100)]

    def lazily() -> Iterator[tuple[str, int]]:
        for n in range(50):
            yield "sum", (bulk.core.get("sum") or 0) + n

    bulk.face.put_all(lazily())
    assert bulk.core.get("sum") == sum(range(50))


@pytest.mark.parametrize("at", [0, 100, 255, 256, 699])
def test_a_dict_that_grows_while_it_is_put_ends_the_call_behind_what_was_stored(at: int) -> None:
    bulk = Alone()
    entries: dict[Any, Any] = {n: Registered(n) if n == at else n for n in range(MANY)}
    Registered.look = staticmethod(lambda content: entries.update(new=1))
    with pytest.raises(RuntimeError, match="dictionary changed size during iteration"):
        bulk.face.put_all(entries)
    assert sorted(bulk.content()) == list(range(at + 1))


def test_an_iterator_that_fails_ends_the_call_behind_what_it_gave() -> None:
    def failing() -> Iterator[tuple[int, int]]:
        yield from ((n, n) for n in range(10))
        raise LookupError("no more")

    bulk = Alone()
    with pytest.raises(LookupError, match="no more"):
        bulk.face.put_all(failing())
    assert len(bulk.core) == 10
    with pytest.raises(LookupError, match="no more"):
        bulk.face.remove_all(key for key, _ in failing())
    assert len(bulk.core) == 0


def test_encoding_may_put_into_the_same_region() -> None:
    bulk = Alone()
    Registered.look = staticmethod(lambda content: bulk.face.put_all({("inner", content, n): n for n in range(300)}))
    bulk.face.put_all({n: Registered(n) if n == 50 else n for n in range(100)})
    assert len(bulk.core) == len(bulk.events()) == 400
    assert bulk.face.get_all([("inner", 50, 299), 99]) == {("inner", 50, 299): 299, 99: 99}


def test_a_region_that_is_closed_while_it_is_put_takes_no_more() -> None:
    bulk = Alone()
    Registered.look = staticmethod(lambda content: bulk.core.close())
    with pytest.raises(pywan.RegionNotFoundError, match=r"put_all stopped at entry 50: .*was destroyed"):
        bulk.face.put_all({n: Registered(n) if n == 50 else n for n in range(100)})


def test_ctrl_c_ends_a_long_call_and_other_threads_run_meanwhile() -> None:
    bulk = Alone(0)
    count, began = 2_000_000, threading.Event()
    entries = [(7, n) for n in range(count)]
    main = threading.main_thread().ident
    assert main is not None and threading.current_thread() is threading.main_thread()

    def interrupt() -> None:
        began.wait(LIMIT_S)
        while 7 not in bulk.core:  # It needs the GIL, amid the call.
            pass
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            began.set()
            while True:  # A busy machine may end the first call before the thread runs.
                bulk.face.put_all(entries)
    finally:
        thread.join(LIMIT_S)
    assert bulk.core.get(7) < count - 1


# Regions that several members hold


@pytest.fixture
def shared() -> Iterator[tuple[list[Any], list[Any]]]:
    """Two sites of two members, the first of which leads one bucket of two; and the members' queues."""
    with SharedSite(2, buckets=BUCKETS) as first, SharedSite(2, buckets=BUCKETS) as second:
        for site in (first, second):
            for member in site.members:
                member.core.attach([queue_to(buckets=BUCKETS)])
            site.lead(1, 1)
            site.keep_carrying()
        yield first.members, second.members


def values_of(members: list[Any], names: Iterable[Any]) -> dict[Any, Any]:
    return {repr(key): repr(members[0].core.get(key)) for key in names}


def test_bulk_calls_of_a_shared_region_do_what_loops_do(shared: tuple[list[Any], list[Any]]) -> None:
    bulk, loop = shared
    face = _core.RegionFace(bulk[0].core)
    entries: list[tuple[Any, Any]] = [
        (f"key{n % 60}" if n % 3 else n, {"id": n, "name": "x" * (n % 7)} if n % 2 else b"%d" % n) for n in range(200)
    ]
    entries[70:70] = [("odd", object()), (None, 1), ("k" * 70_000, 1), ("of a user", Registered("three"))]
    with pytest.raises(BatchError) as caught:
        face.put_all(entries, "why")
    with pytest.raises(BatchError) as expected:
        put_each(loop[0].core, entries, "why")
    assert [row for row, _ in caught.value.failures] == [row for row, _ in expected.value.failures] == [70, 71, 72]
    assert caught.value.applied == expected.value.applied == 201 and not caught.value.in_doubt
    names = [key for key, _ in entries if key is not None and key != "k" * 70_000] + ["absent"]
    assert values_of(bulk, names) == values_of(loop, names)
    assert face.get_all(names) == get_each(loop[0].core, names)
    assert list(face.get_all(iter(names))) == list(dict.fromkeys(names))
    assert face.remove_all(names[::2], "why") == remove_each(loop[0].core, names[::2], "why")
    assert values_of(bulk, names) == values_of(loop, names)
    for n in range(2):  # Each queue has each bucket's events in their order.
        one, other = (sorted(queued(lead(site[n].core.queues[0])), key=lambda event: event[:2]) for site in shared)
        assert one == other and len(one) > 200


def test_entries_before_one_that_is_no_pair_are_stored_in_a_shared_region(shared: tuple[list[Any], list[Any]]) -> None:
    members, _ = shared
    face = _core.RegionFace(members[0].core)
    with pytest.raises(ConfigurationError, match=r"entry 20 is no pair .*the entries before it were stored"):
        face.put_all([*((n, n) for n in range(20)), "none", ("later", 1)])
    assert face.get_all([*range(20), "later"]) == {**{n: n for n in range(20)}, "later": None}

    def failing() -> Iterator[int]:
        yield from range(10)
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        face.remove_all(failing())
    assert sum(value is None for value in face.get_all(range(20)).values()) == 10


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
def test_get_all_raises_what_get_raises(is_shared: bool, shared: tuple[list[Any], list[Any]]) -> None:
    core = shared[0][0].core if is_shared else Alone(0).core
    face = _core.RegionFace(core)
    face.put_all({"good": 1, "bad": _core.Encoded(_core.encode_object(Registered("x"))[0], b"\xc1"), "user": 1})
    assert face.get_all(["good", "user"]) == {"good": 1, "user": 1}
    for keys_, error in (
        (["good", "bad"], SerializationError),
        (["good", None], SerializationError),
        (["k" * 70_000], EventTooLargeError),
        (5, TypeError),
    ):
        with pytest.raises(error):
            face.get_all(keys_)


def test_a_dict_that_a_listener_clears_is_put_as_far_as_a_loop_puts_it(network: Any) -> None:
    """The listener is called between entries, as in a loop."""

    class Clears(pywan.CacheListener):
        def after_create(self, event: Any) -> None:
            if event.key == 5:
                entries.clear()

    ny = network.site("ny")
    entries = dict.fromkeys(range(MANY), b"v")
    region = ny.cache.create_region("cleared", type="REPLICATE")
    region.add_listener(Clears())
    with pytest.raises(RuntimeError, match="changed size"):
        region.put_all(entries)
    assert sorted(region) == [0, 1, 2, 3, 4, 5]


def test_keys_that_are_encoded_twice_take_no_memory_for_each_entry() -> None:
    program = """
import resource
from pywan import _core, serializers

class Registered: pass

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

serializers.register_serializer(Registered, lambda value: b"v", lambda data: Registered(), name="test-peak")
region = _core.RegionFace(_core.RegionCore("r", _core.Clock(), site=1, member=1))
key, value = (1, "x" * 3000), Registered()
region.put_all([(key, value)] * 1000)
before = peak()
region.put_all([(key, value)] * 60_000)
print(peak() - before)
"""
    grown_kb = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(grown_kb) < 30_000  # The keys alone have 180 MB.

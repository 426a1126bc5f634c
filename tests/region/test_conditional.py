"""Conditional changes: put_if_absent, setdefault, replace, remove, pop; `|=` and clear."""

import sys
import threading
import traceback

import pytest

from pywan import CacheListener, GatewayEventFilter
from pywan.errors import IllegalStateError, QueueFullError, RegionNotFoundError
from pywan.region.region import core_of
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import call_once


class Heard(CacheListener):
    def __init__(self):
        self.operations = []

    def after_create(self, event):
        self.operations.append(("create", event.key, event.new_value))

    def after_update(self, event):
        self.operations.append(("update", event.key, event.old_value, event.new_value))

    def after_destroy(self, event):
        self.operations.append(("destroy", event.key, event.old_value))


@pytest.fixture(params=["straight", "with a listener", "LOCAL", "REPLICATE_PERSISTENT"])
def data(request, network, tmp_path):
    ny = network.site("ny")
    if request.param == "REPLICATE_PERSISTENT":
        ny.cache.close()
        ny.start_member(dir=tmp_path)
    region = ny.region(type=request.param if request.param.isupper() else "REPLICATE")
    if request.param == "with a listener":
        region.add_listener(Heard())
    return region


def test_put_if_absent_stores_only_where_there_is_no_value(data):
    assert data.put_if_absent("k", {"v": 1}) is None
    assert data.put_if_absent("k", 2) == {"v": 1} == data["k"]
    data.invalidate("k")
    assert data.put_if_absent("k", b"") is None and data["k"] == b""
    assert data.put_if_absent("k", 3) == b""
    del data["k"]
    assert data.put_if_absent("k", 4) is None and data["k"] == 4


def test_setdefault_gives_what_is_there_none_too(data):
    assert data.setdefault("k", [1]) == [1] == data["k"]
    assert data.setdefault("k", 2) == [1]
    data["none"] = None
    assert data.setdefault("none", 1) is None and data["none"] is None
    assert data.setdefault("new") is None and "new" in data


def test_replace_needs_a_value_or_the_one_that_is_expected(data):
    assert data.replace("k", 1) is None and "k" not in data
    data["k"] = "a"
    assert data.replace("k", "b") == "a" and data["k"] == "b"
    assert not data.replace("k", "a", "c") and data["k"] == "b"
    assert not data.replace("k", b"b", "c")  # Another form is another value.
    assert data.replace("k", "b", "c") and data["k"] == "c"
    assert not data.replace("not there", None, 1) and "not there" not in data
    data.invalidate("k")
    assert data.replace("k", 1) is None and not data.replace("k", None, 1) and data["k"] is None
    with pytest.raises(TypeError, match="nothing was changed"):
        data.replace("k")


def test_remove_and_pop_destroy_what_they_saw(data):
    data |= {"k": 1, "other": 2}
    assert not data.remove("k", 2) and not data.remove("not there", 1) and len(data) == 2
    assert data.remove("k", 1) and "k" not in data
    assert data.pop("other") == 2 and data.pop("other", "gone") == "gone"
    with pytest.raises(KeyError):
        data.pop("other")
    data |= [("a", 1)]
    assert data.popitem() == ("a", 1)
    with pytest.raises(KeyError):
        data.popitem()


def at_once(count, work):
    """`work(n)` in so many threads that begin together; what they returned."""
    begin, results = threading.Barrier(count), [None] * count

    def run(n):
        begin.wait()
        results[n] = work(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_of_many_threads_one_wins_each_key(data):
    keys = range(200)
    stored = at_once(8, lambda n: [data.put_if_absent(key, n) is None for key in keys])
    assert all(sum(won[key] for won in stored) == 1 for key in keys)
    assert all(stored[data[key]][key] for key in keys)
    given = at_once(8, lambda n: [data.setdefault(("new", key), n) for key in keys])
    assert all(own == given[0] for own in given)
    removed = at_once(8, lambda n: [data.remove(key, data.get(key, -1)) for key in keys])
    assert all(sum(won[key] for won in removed) == 1 for key in keys)
    popped = at_once(8, lambda n: [data.pop(("new", key), None) for key in keys])
    assert [next(own[key] for own in popped if own[key] is not None) for key in keys] == given[0]
    assert all(sum(own[key] is not None for own in popped) == 1 for key in keys) and len(data) == 0


def functions(frame):
    """The names of those that run in a thread."""
    return [each.f_code.co_name for each, _ in traceback.walk_stack(frame)]


@pytest.mark.parametrize("absent", [True, False], ids=["put --if-not-exists", "remove"])
def test_commands_that_look_first_are_one_step_too(two_sites, network, absent):
    """The first of two stands in a filter while the second one comes."""
    entered, gate = threading.Event(), threading.Event()

    class Gate(GatewayEventFilter):
        def before_enqueue(self, event):
            entered.set()
            assert gate.wait(LIMIT_S)
            return True

    ny, _ = two_sites
    if not absent:
        ny.data["k"] = 0
    ny.sender("ln").alter(gateway_event_filters=[Gate()])
    command = (
        {"op": "put", "region": "data", "key": "k", "value": 1, "if_not_exists": True}
        if absent
        else {"op": "remove", "region": "data", "key": "k"}
    )
    done = []
    threads = [
        threading.Thread(
            target=lambda: done.append(call_once(("127.0.0.1", ny.cache.port), timeout=30.0, **command)["done"])
        )
        for _ in range(2)
    ]
    threads[0].start()
    assert entered.wait(LIMIT_S)
    threads[1].start()
    eventually(
        lambda: (
            sum({"on_put", "on_remove"} & set(functions(frame)) != set() for frame in sys._current_frames().values())
            == 2
        )
    )
    gate.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(done) == [False, True]


def test_counting_by_replace_loses_no_step(data):
    data["count"] = 0

    def count(_):
        for _ in range(100):
            while not data.replace("count", before := data["count"], before + 1):
                pass

    at_once(6, count)
    assert data["count"] == 600


# Elsewhere


def test_they_travel_as_create_update_and_destroy(two_sites, network):
    ny, ln = two_sites
    received = Heard()
    ln.data.add_listener(received)
    ny.data.put_if_absent("k", 1)
    ny.data.put_if_absent("k", 2)
    ny.data.replace("k", 3)
    ny.data.replace("k", 1, 4)
    ny.data.replace("k", 3, 4)
    ny.data.remove("k", 3)
    ny.data.remove("k", 4)
    ny.data.replace("k", 5)
    network.settle()
    assert received.operations == [
        ("create", "k", 1),
        ("update", "k", 1, 3),
        ("update", "k", 3, 4),
        ("destroy", "k", 4),
    ]
    assert ny.sender(ln).ledger()["queued"] == 4


def test_a_filter_is_asked_only_of_what_would_change_something(network):
    asked = []

    class Asked(GatewayEventFilter):
        def before_enqueue(self, event):
            asked.append((event.operation, event.value))
            return True

    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], gateway_event_filters=[Asked()])
    eventually(lambda: ny.sender(ln).is_connected)
    assert ny.data.put_if_absent("k", 1) is None and ny.data.put_if_absent("k", 2) == 1
    assert not ny.data.remove("k", 2) and ny.data.replace("k", 1, 3) and ny.data.pop("k") == 3
    network.settle()
    assert asked == [("create", 1), ("update", 3), ("destroy", None)] and len(ln.data) == 0


def test_what_is_not_met_needs_no_room_in_a_queue(network, tmp_path):
    from pywan import _core

    queue = _core.EventQueue("to 2", remote_site=2, memory_limit=1)
    queue.running = True
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.attach([queue])
    region.put("k", 1)
    with pytest.raises(QueueFullError):
        while True:
            region.put("other", bytes(100_000))
    assert region.change_if("absent", 1, "k", bytes(100_000)) == (False, True, 1)
    assert region.change_if("equal", 2, "k", None, 2)[0] is False
    with pytest.raises(QueueFullError):
        region.change_if("value", 1, "k", bytes(100_000))
    assert region.get("k") == 1


def test_a_proxy_says_that_it_cannot_know(network):
    proxy = network.site("ny").region(type="REPLICATE_PROXY")
    for call in (
        lambda: proxy.put_if_absent("k", 1),
        lambda: proxy.replace("k", 1),
        lambda: proxy.remove("k", 1),
        lambda: proxy.setdefault("k"),
    ):
        with pytest.raises(IllegalStateError, match="proxy and holds no entries"):
            call()


def test_a_closed_region_refuses_them(network):
    data = network.site("ny").region(type="REPLICATE")
    core_of(data).close()
    for call in (lambda: data.put_if_absent("k", 1), lambda: data.pop("k", None), lambda: data.clear()):
        with pytest.raises(RegionNotFoundError):
            call()


def test_clear_is_refused_where_other_sites_would_keep_their_entries(two_sites, network):
    ny, ln = two_sites
    ny.data.put_all({n: n for n in range(10)})
    network.settle()
    with pytest.raises(
        IllegalStateError, match=r"and clear\(\) sends them nothing; nothing was removed. Use clear\(local=True\)"
    ):
        ny.data.clear()
    assert len(ny.data) == 10
    assert ny.data.clear(local=True) == 10
    network.settle()
    assert len(ny.data) == 0 and len(ln.data) == 10
    assert ln.data.clear() == 10  # It feeds nobody.
    ny.data[1] = 1
    assert ny.data.remove_all(list(ny.data)) == 1
    network.settle()
    assert len(ln.data) == 0


def test_what_was_cleared_and_removed_on_condition_stays_away_after_a_restart(network, tmp_path):
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    data = ny.region(type="REPLICATE_PERSISTENT")
    data |= {n: n for n in range(100)}
    assert data.clear(local=True) == 100
    data |= {n: -n for n in range(10)}
    assert data.remove(1, -1) and data.replace(2, -2, 22) and data.put_if_absent(11, 11) is None and data.pop(3) == -3
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    assert dict(ny.region(type="REPLICATE_PERSISTENT")) == {0: 0, 2: 22, 11: 11, **{n: -n for n in range(4, 10)}}

"""A member, locator, sender or receiver for which the system has no thread is not started, says so, and can be started
later.
"""

import threading

import pytest

import pywan
from pywan import errors
from pywan.base import threads
from pywan.testing.waiting import LIMIT_S
from pywan.transport.control import ControlClient
from support.strangers import answer, hello


@pytest.fixture
def without_threads(monkeypatch):
    """Calls something while no thread whose name begins so can be started: it has to say that the system has none."""
    start = threading.Thread.start

    def attempt(beginning, call):
        def refuse(thread):
            if thread.name.startswith(beginning):
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(errors.IllegalStateError, match=r"no more threads|no thread"):
                call()

    return attempt


def test_a_sender_without_a_thread_is_stopped_and_starts_later(network, without_threads):
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    sender = ny.sender(ln)
    sender.stop()
    without_threads("sender-ln-1", sender.start)  # The second of its two.
    assert not sender.is_running and not sender.is_connected
    sender.stop()
    sender.start()
    ny.data["k"] = 1
    network.settle()
    assert ln.data["k"] == 1


def test_a_sender_that_was_made_without_threads_is_there_and_ends_with_its_member(network, without_threads):
    ny = network.site("ny")
    without_threads("sender-tk", lambda: ny.send_to("tk"))
    without_threads("sender-hk", lambda: ny.send_to("hk"))
    ny.sender("tk").destroy()
    assert list(ny.cache.gateway_senders()) == ["hk"] and not ny.sender("hk").is_running


def test_a_receiver_without_a_thread_gives_its_port_back(network, without_threads):
    ny = network.site("ny")
    receiver = ny.receive(manual_start=True)
    without_threads("receiver-accept", receiver.start)
    assert not receiver.is_running and receiver.port == 0
    receiver.start()
    assert receiver.is_running


@pytest.mark.parametrize("beginning", ["server_ny-housekeeping", "server_ny-locator", "member server_ny-accept"])
def test_a_member_without_a_thread_says_so_and_leaves_nothing(network, tmp_path, without_threads, beginning):
    ny = network.site("ny")
    ny.cache.close()
    without_threads(beginning, lambda: ny.start_member(dir=tmp_path))
    ny.start_member(dir=tmp_path)  # Its name and its folder are free.


@pytest.mark.parametrize("beginning", ["locator ny-gossip", "locator ny-accept"])
def test_a_locator_without_a_thread_gives_its_port_back(no_thread_left, without_threads, beginning):
    locator = pywan.Locator("ny", distributed_system_id=1, port=0)
    without_threads(beginning, locator.start)
    with pywan.Locator("ny", distributed_system_id=1, port=locator.port):
        pass


def test_what_is_persistent_is_made_once_there_are_threads(network, tmp_path, without_threads):
    ny = network.site("ny")
    ny.cache.close()
    cache = ny.start_member(dir=tmp_path)
    without_threads("region-", lambda: cache.create_region("kept", type="PARTITION_PERSISTENT"))
    without_threads("sender-tk-log", lambda: ny.send_to("tk", enable_persistence=True))
    cache.create_region("kept", type="PARTITION_PERSISTENT", gateway_sender_ids=["tk"])
    ny.send_to("tk", enable_persistence=True)
    cache.region("kept")["k"] = 1
    cache.close()
    cache = ny.start_member(dir=tmp_path)
    assert (
        cache.create_region("kept", type="PARTITION_PERSISTENT")["k"] == 1
        and ny.send_to("tk", enable_persistence=True).queue_size == 1
    )


def test_a_port_goes_on_when_a_thread_was_started_and_does_not_begin(network, monkeypatch, caplog):
    """So ends a thread that finds no memory for its first steps."""
    monkeypatch.setattr(threads, "BEGIN_TIMEOUT_S", 0.2)
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    ports = ln.receiver.port, ln.cache.port, ln.locator.port
    begin = threading.Thread._bootstrap  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr(
            threading.Thread,
            "_bootstrap",
            lambda thread: (
                None
                if thread.name.startswith(("receiver-", "member server_ln-", "locator locator_ln-"))
                else begin(thread)
            ),
        )
        for port in ports:
            assert answer(port, hello()) == b""
    ny.data["k"] = 1
    network.settle()
    assert ln.data["k"] == 1 and "did not begin" in caplog.text
    for port in ports[1:]:
        with ControlClient(("127.0.0.1", port), LIMIT_S) as client:
            assert client.call("ping")["ok"]

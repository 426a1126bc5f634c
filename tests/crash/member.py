"""Owns the processes that a crash campaign kills: a nursery, which has imported everything and forks members, so that a
start takes milliseconds; a member; and the writers of the first one."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import load

from pywan.callbacks import CacheListener
from pywan.errors import DiskError, QueueFullError, RegionNotFoundError
from pywan.member.cache import Cache

MESSAGE_BYTES = 1 << 17


class Journal(CacheListener):
    """Notes each change in a file, in one write, as it is applied: what was written is there whatever becomes of the
    process. A kill can cut a write between two pages of the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._file, b"\nlife\n")

    def _note(self, event: Any) -> None:
        number = -1 if event.new_value is None else load.number_of(event.new_value)
        os.write(self._file, f"{event.key} {number}\n".encode())

    after_create = after_update = after_destroy = _note


def open_cache(spec: dict[str, Any]) -> tuple[Cache, dict[str, Any]]:
    """The member's cache, and which disk store its sender and region use."""
    cache = Cache(f"server_{spec['site']}", locators=spec["locators"], dir=spec["directory"], ssl=spec["ssl"])
    if not spec["store_mb"]:
        return cache, {}
    cache.create_disk_store("small", directories=((spec["directory"], spec["store_mb"]),))
    return cache, {"disk_store_name": "small"}


class Member:
    """A member with its persistent region; with a persistent sender, or a receiver, or both."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.cache, store = open_cache(spec)
        self.sender = self.receiver = None
        if spec["sends_to"]:
            self.sender = self.cache.create_gateway_sender(
                "next", remote_distributed_system_id=spec["sends_to"], **spec["sender"], **store
            )
        self.region = self.cache.create_region(
            "data", type=spec["type"], gateway_sender_ids=("next",) if self.sender else (), **spec["region"], **store
        )
        if spec["journal"]:
            self.region.add_listener(Journal(Path(spec["directory"]) / "journal"))
        if spec["receives"]:
            self.receiver = self.cache.create_gateway_receiver(start_port=0, end_port=0)

    def tell(self) -> dict[str, Any]:
        told: dict[str, Any] = {"applied": self.region.applied}
        if self.sender is not None:
            told |= {
                "ledger": self.sender.ledger(),
                "lag": self.sender.lag(),
                "stats": self.sender.stats,
                "is_connected": self.sender.is_connected,
            }
        if self.receiver is not None:
            told["received"] = self.receiver.stats
        return told

    def contents(self) -> dict[str, int]:
        return {key: load.number_of(self.region[key]) for key in self.region}


class Writers:
    """A thread that writes to the first member, and tells after each operation what became of it."""

    def __init__(self, member: Member, first: list[int], outcomes: int) -> None:
        self._region, self._queue = member.region, member.sender._core.queue
        self._outcomes = outcomes  # A pipe: what was written to it outlives the process.
        self._waits = not self._queue.synchronous
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._locks = [threading.Lock() for _ in range(load.WRITERS)]
        for writer, number in enumerate(first):
            threading.Thread(target=self._write, args=(writer, number), name=f"writer-{writer}", daemon=True).start()

    def _write(self, writer: int, number: int) -> None:
        while True:
            self._goes_on.wait()
            with self._locks[writer]:
                if self._goes_on.is_set():
                    try:
                        outcome = self._operate(writer, number)
                    except RegionNotFoundError:
                        return  # The member closes. Of columns some rows may be stored.
                    os.write(self._outcomes, load.OUTCOME.pack(writer, outcome, number))
                    number += 1

    def _operate(self, writer: int, number: int) -> int:
        keys = load.keys(writer, number)
        try:
            if writer == load.COLUMNS:
                self._region.put_columns(keys, [load.value(writer, number)] * len(keys))
            elif load.destroys(writer, number):
                self._region.destroy(keys[0])
            else:
                self._region.put(keys[0], load.value(writer, number))
            if self._waits:
                self._queue.wait_durable()
            return load.DONE
        except KeyError:
            return load.ABSENT
        except QueueFullError:
            return load.UNKNOWN if writer == load.COLUMNS else load.REFUSED  # Some rows of the columns may be stored.
        except DiskError:
            return load.UNKNOWN

    def pause(self) -> dict[str, Any]:
        self._goes_on.clear()
        for lock in self._locks:
            with lock:
                pass  # The thread that held it saw that it is to stop, or is done.
        return {}

    def resume(self) -> dict[str, Any]:
        self._goes_on.set()
        return {}


def serve(member: Member, writers: Writers | None, control: socket.socket) -> None:
    """Answers until told to stop; ends the process when nobody is there any more to tell it."""
    while request := control.recv(MESSAGE_BYTES).decode():
        if request == "stop":
            member.cache.close()
            control.send(b"{}")
            os._exit(0)
        answer = getattr(writers if request in ("pause", "resume") else member, request)()
        control.send(json.dumps(answer).encode())
    os._exit(1)


def run_member(spec: dict[str, Any], control: socket.socket, outcomes: int) -> None:
    os.environ["FAULTY_DISK"] = spec["hold"]
    logging.basicConfig(
        filename=Path(spec["directory"]) / "log",
        level=logging.WARNING,
        format="%(asctime)s %(process)d %(name)s %(message)s",
    )
    try:
        member = Member(spec)
        writers = Writers(member, spec["next"], outcomes) if "next" in spec else None
        if writers is None:
            os.close(outcomes)
        control.send(b"{}")
        serve(member, writers, control)
    except BaseException:
        with contextlib.suppress(OSError):  # Perhaps nobody is there any more.
            control.send(json.dumps({"error": traceback.format_exc()[-2000:]}).encode())
        os._exit(1)


def nurse(driver: socket.socket) -> None:
    """Forks members as told, and tells how they ended. Has no thread of its own: a fork would not take it along."""
    while True:
        request, files, _, _ = socket.recv_fds(driver, MESSAGE_BYTES, 2)
        if not request:
            return
        told = json.loads(request)
        if "end" in told:
            _, status = os.waitpid(told["end"], 0)
            driver.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            driver.close()
            run_member(told["start"], socket.socket(fileno=files[0]), files[1])
        for file in files:
            os.close(file)
        driver.send(json.dumps(pid).encode())


if __name__ == "__main__":
    nurse(socket.socket(fileno=int(sys.argv[1])))

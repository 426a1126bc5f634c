"""Owns member processes: a locator or a server as a separate process, started detached and stopped by name.

The folder `<dir>/<name>/` holds the files of a member. `<name>.pid` has the pid and the process's start time in its
first line, and JSON with the listening address in its second line. `<name>.log` is the member's log. A pid file is
valid only if a process with the same pid and the same start time exists.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import io
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pywan
from pywan import errors
from pywan.base.files import given_path, make_folder, open_own
from pywan.base.names import check_name, printable
from pywan.base.processes import start_of
from pywan.base.threads import EssentialThread, Thread
from pywan.config import values
from pywan.errors import (
    ConfigurationError,
    ConnectivityError,
    IllegalStateError,
    InternalError,
    NotFoundError,
    PywanError,
)
from pywan.forks import in_child

if TYPE_CHECKING:
    from pywan.transport.links import Links

log = logging.getLogger("pywan.process")

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0  # Limit of a stop by request. Later the process gets a signal, then it is killed.
SIGNAL_TIMEOUT_S = 10.0
ASK_TIMEOUT_S = 5.0
LOCK_TIMEOUT_S = 2.0
MAX_REPORT_BYTES = 65536
# The number of problems in the report of a starting member. The log and the status have all problems.
MAX_PROBLEMS_TOLD = 20
LOG_TAIL_LINES = 12
PID_FILE_LENGTH_MAX = 65536
LOG_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s [%(threadName)s] %(name)s: %(message)s"
LOG_LEVELS = {
    "none": logging.CRITICAL,
    "severe": logging.ERROR,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "config": logging.INFO,
    "fine": logging.DEBUG,
    "finer": logging.DEBUG,
    "finest": logging.DEBUG,
    "all": logging.DEBUG,
    "debug": logging.DEBUG,
}


@dataclass(frozen=True)
class MemberFiles:
    """The files of a member, by the member's name."""

    directory: Path  # The folder of all members, with the member's own folder.
    name: str

    @classmethod
    def of(cls, directory: str | os.PathLike[str] | None, name: str) -> MemberFiles:
        """Returns the files of the member `name` in `directory` (None: the current directory). ConfigurationError: the
        name or the path is not allowed."""
        check_name(name, "--name")
        return cls(given_path(directory or ".").absolute(), name)

    @property
    def folder(self) -> Path:
        return self.directory / self.name

    @property
    def pid_file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    @property
    def lock_file(self) -> Path:
        """The file that the member's process keeps locked while the process is alive."""
        return self.folder / f".{self.name}.lock"

    @property
    def log_file(self) -> Path:
        return self.folder / f"{self.name}.log"


@dataclass(frozen=True)
class Recorded:
    """The content of a pid file about an existing process."""

    pid: int
    start_time: str
    kind: str
    host: str
    port: int
    details: dict[str, Any]

    @property
    def where(self) -> str:
        """The process in words."""
        return f"pid {self.pid}, {self.host}[{self.port}]" if self.port else f"pid {self.pid}"


# --- processes by number ---


def recorded(files: MemberFiles) -> Recorded | None:
    """Returns the running member. None: no member runs in the folder, even if an old pid file names a process.

    If the pid file is damaged or missing, the lock of the name identifies the process. Then the listening address is
    unknown (port 0). IllegalStateError: this user may not see the process.
    """
    try:
        with open(open_own(files.pid_file, os.O_RDONLY)) as file:
            problem, text = "is damaged", file.read(PID_FILE_LENGTH_MAX)
    except PermissionError as error:
        raise IllegalStateError(
            f"{files.pid_file} cannot be read: {error.strerror}; it belongs to another user, who can say what runs"
            " there"
        ) from None
    except (OSError, ValueError) as error:
        problem, text = f"cannot be read ({getattr(error, 'strerror', None) or error})", ""
    try:
        first, _, rest = text.partition("\n")
        pid_text, start_time = first.split()
        details = json.loads(rest) if rest.strip() else {}
        in_file = Recorded(
            int(pid_text),
            start_time,
            str(details.get("kind", "")),
            str(details.get("host", "")),
            int(details.get("port", 0)),
            details,
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        in_file = None
    if in_file is not None and start_of(in_file.pid) == in_file.start_time:
        return in_file
    return _holder(files, problem)


def _holder(files: MemberFiles, problem: str) -> Recorded | None:
    """Returns the process that holds the name's lock. None: no process holds it."""
    try:
        descriptor = open_own(files.lock_file, os.O_RDONLY)
    except PermissionError as error:
        raise IllegalStateError(
            f"{files.lock_file} cannot be opened: {error.strerror}; it belongs to another user, who can say what"
            " runs there"
        ) from None
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        pid = _pid_with_lock(os.fstat(descriptor))
    finally:
        os.close(descriptor)
    start_time = start_of(pid) if pid else ""
    if not start_time:
        raise IllegalStateError(
            f"a process holds {files.lock_file}, so {files.name!r} runs, but {files.pid_file} {problem}; find that"
            " process with `fuser`, and stop it by its pid"
        )
    return Recorded(
        pid,
        start_time,
        "",
        "",
        0,
        {
            "problem": f"{files.pid_file} {problem}; process {pid} holds the lock of the name, and where it listens"
            " is unknown"
        },
    )


def _pid_with_lock(file: os.stat_result) -> int:
    """Returns the process with an flock on a file, as the system lists locks. 0: the system does not list the lock."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return 0
    wanted = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    for line in lines:
        # A line is "1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF". A "->" behind the first number marks a waiting
        # process.
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == wanted and fields[4].isdigit():
            return int(fields[4])
    return 0


def wait_until_gone(member: Recorded, timeout: float) -> bool:
    """Returns whether the process ends within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    try:
        descriptor = os.pidfd_open(member.pid)
    except (AttributeError, OSError):
        descriptor = None
    try:
        # The descriptor is correct only while the pid belongs to the recorded process.
        while start_of(member.pid) == member.start_time:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if descriptor is not None:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll(min(left, 1.0) * 1000)
            else:
                threading.Event().wait(min(left, 0.05))
        return True
    finally:
        if descriptor is not None:
            os.close(descriptor)


def send_signal(member: Recorded, number: int) -> None:
    """Sends a signal to the recorded process. If another process has the pid now, no signal is sent."""
    try:
        descriptor = os.pidfd_open(member.pid)
    except AttributeError:
        descriptor = None
    except OSError:
        return
    try:
        if start_of(member.pid) == member.start_time:
            if descriptor is not None:
                signal.pidfd_send_signal(descriptor, number)
            else:
                os.kill(member.pid, number)
    except ProcessLookupError:
        pass
    finally:
        if descriptor is not None:
            os.close(descriptor)


# --- called from outside: start, stop, status ---


def start(
    kind: str,
    name: str,
    options: Mapping[str, Any],
    *,
    directory: str | os.PathLike[str] | None = None,
    timeout: float = START_TIMEOUT_S,
) -> dict[str, Any]:
    """Starts a member in a session of its own. Returns `pid`, `host`, `port` and `log_file` when the member is ready.

    If the member cannot start, the member's own error is raised, and no process is left.
    """
    files = MemberFiles.of(directory, name)
    running = recorded(files)
    if running is not None:
        raise IllegalStateError(
            f"{kind} {name!r} is running already ({running.where}) in {files.folder}; stop it first, or choose"
            " another name or --dir"
        )
    spec = {
        "kind": kind,
        "name": name,
        "directory": str(files.directory),
        "options": dict(options),
        "path": [os.getcwd()],
    }
    child, read_end = _spawn(kind, name)
    try:
        with contextlib.suppress(BrokenPipeError):
            assert child.stdin is not None
            child.stdin.write(json.dumps(spec).encode())
            child.stdin.close()
        report = _read_report(read_end, time.monotonic() + timeout)
    except BaseException:
        child.kill()
        child.wait(SIGNAL_TIMEOUT_S)
        raise
    finally:
        os.close(read_end)
    if report is None or "error" in report:
        raise _why_not_started(kind, name, files, child, report, timeout)
    # If this program outlives the member, this thread collects the ended process. Otherwise init collects the process.
    Thread(child.wait, name=f"collect-{name}").start()
    return {**report, "log_file": str(files.log_file), "folder": str(files.folder)}


def _spawn(kind: str, name: str) -> tuple[subprocess.Popen[bytes], int]:
    """Starts the process of a member. Returns the process, and the descriptor for reading the process's report."""
    environment = dict(os.environ)
    package_home = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_home, environment.get("PYTHONPATH")]))
    read_end, write_end = os.pipe()
    try:
        # The option -P: a member does not import modules from the current directory.
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "pywan.member.process", kind, name, str(write_end)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[write_end],
            start_new_session=True,
            env=environment,
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return child, read_end


def _why_not_started(
    kind: str,
    name: str,
    files: MemberFiles,
    child: subprocess.Popen[bytes],
    report: Mapping[str, Any] | None,
    timeout: float,
) -> PywanError:
    """Ends the process of a member after a failed start. Returns the member's own error from `report`, or another
    error."""
    reason = ""
    if report is None and child.poll() is None:
        child.kill()
        reason = (
            f"it was not ready within {timeout:.0f} s and was ended; if its log shows that it was still"
            " reading its disk stores, give it a larger --timeout"
        )
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(STOP_TIMEOUT_S)
    if report is not None:
        named = getattr(errors, str(report.get("kind")), None)
        known = named if isinstance(named, type) and issubclass(named, PywanError) else PywanError
        reason = str(report["error"]).removeprefix(f"{kind} {name}: ").removeprefix(f"member {name}: ")
        return known(f"{kind} {name!r} did not start: {reason}")
    reason = reason or f"its process ended with status {child.returncode}"
    return PywanError(f"{kind} {name!r} did not start: {reason}; log: {files.log_file}{_log_tail(files)}")


def _read_report(descriptor: int, deadline: float) -> dict[str, Any] | None:
    """Returns the child's report. None: the child sends no report in time, or ends before the report."""
    data = b""
    while len(data) < MAX_REPORT_BYTES:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return None
        chunk = os.read(descriptor, 4096)
        if not chunk:
            break
        data += chunk
    try:
        report = json.loads(data)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _log_tail(files: MemberFiles) -> str:
    return "".join(f"\n  {line}" for line in _log_lines(files, 0))


def _log_lines(files: MemberFiles, begin: int, words: tuple[str, ...] = ("",)) -> list[str]:
    """Returns the newest lines of a member's log, from byte `begin` on, with one of the words."""
    try:
        with open(open_own(files.log_file, os.O_RDONLY), errors="replace") as file:
            file.seek(begin)
            return list(
                collections.deque(
                    (line.rstrip() for line in file if any(word in line for word in words)), LOG_TAIL_LINES
                )
            )
    except OSError:
        return []


def stop(
    kind: str,
    name: str,
    *,
    directory: str | os.PathLike[str] | None = None,
    timeout: float = STOP_TIMEOUT_S,
    maximum_shutdown_wait_time: float | None = None,
    handover_time: float | None = None,
    only_in_order: bool = False,
    links: Callable[[], Links] | None = None,
    on_progress: Callable[[dict[str, Any]], None] = lambda told: None,
    on_reply: Callable[[dict[str, Any]], None] = lambda reply: None,
) -> dict[str, Any]:
    """Stops the member with this name: by request, or else by SIGTERM, or else by SIGKILL.

    The limit for a server is the sum of the wait time for its queues (`maximum_shutdown_wait_time`, or the server's
    own), the wait time for other members (`handover_time`, or the server's own), and `timeout` seconds more.
    `only_in_order`: a server with an answer is stopped only if other members have taken over the server's last
    replicas. `on_progress` is called during this wait, and `on_reply` with the server's answer before the server ends;
    the answer has the wait time for the queues. `links` makes the TLS contexts of the request.

    Returns "name", "pid", and "how" the member was stopped. "said" holds warnings from the log of a member that could
    not be asked, for example about lost events. NotFoundError: no such member runs in the folder. IllegalStateError:
    the member goes on.
    """
    files = MemberFiles.of(directory, name)
    member = recorded(files)
    if member is None:
        raise NotFoundError(f"{kind} {name!r} is not running in {files.folder}; say where with --dir")
    if member.kind and member.kind != kind:
        raise ConfigurationError(
            f"{name!r} in {files.folder} is a {member.kind}, not a {kind}: use `stop {member.kind}`"
        )
    log_end = 0
    with contextlib.suppress(OSError):
        log_end = files.log_file.stat().st_size
    how, answer = "request", {}
    try:
        if kind == "locator":
            answer = _ask(member, "stop", links)
        else:
            given = {
                "maximum_shutdown_wait_time": maximum_shutdown_wait_time,
                "handover_time": handover_time,
                "only_in_order": only_in_order or None,
            }
            wanted = {key: value for key, value in given.items() if value is not None}
            wait_s = stop_reply_timeout(_ask(member, "status member", links), handover_time) if only_in_order else 0.0
            answer = _ask(member, "stop member", links, ASK_TIMEOUT_S + wait_s, on_progress, **wanted)
        on_reply(answer)
    except PywanError as error:
        log.info("%s %s did not take the request to stop: %s", kind, name, error)
        how = "SIGTERM"
        send_signal(member, signal.SIGTERM)
    check_not_refused(name, answer)
    timeout += values.to_wait_time(answer.get("maximum_shutdown_wait_time", 0), "maximum_shutdown_wait_time")
    timeout += values.to_wait_time(answer.get("handover_time", 0), "handover_time")
    if not wait_until_gone(member, timeout):
        how = _end_by_signals(kind, name, member)
    with contextlib.suppress(OSError):
        if recorded(files) is None:
            files.pid_file.unlink()
    said = _log_lines(files, log_end, (" WARNING ", " ERROR ")) if how != "request" else []
    return {
        "name": name,
        "pid": member.pid,
        "how": how,
        **({"said": said} if said else {}),
        **({"volatile_events": answer["volatile_events"]} if answer.get("volatile_events") else {}),
        **({"lost_copies": answer["lost_copies"]} if answer.get("lost_copies") else {}),
    }


def _end_by_signals(kind: str, name: str, member: Recorded) -> str:
    """Ends a process that does not end by itself. Returns the signal that ended the process."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        send_signal(member, number)
        if wait_until_gone(member, SIGNAL_TIMEOUT_S):
            return number.name
    raise IllegalStateError(f"{kind} {name!r} (pid {member.pid}) does not end, not even by SIGKILL")


def stop_reply_timeout(status: Mapping[str, Any], handover_time: float | None) -> float:
    """Returns the time within which a server answers whether the server stops in order. `status`: the server's own
    status."""
    wanted = status.get("handover_time", 0) if handover_time is None else handover_time
    return min(values.to_wait_time(wanted, "handover_time"), values.MAX_WAIT_S)


def check_not_refused(name: str, answer: Mapping[str, Any]) -> None:
    """Raises IllegalStateError if a server has answered that the server does not stop."""
    if answer.get("is_refused"):
        raise IllegalStateError(
            f"server {name} was not stopped and goes on: other members have not taken over in time what only it has:"
            f" {answer['lost_copies']}; give it more time (--handover-time=SECONDS), or end it all the same and lose"
            " that (--force)"
        )


def status(
    kind: str,
    name: str,
    *,
    directory: str | os.PathLike[str] | None = None,
    links: Callable[[], Links] | None = None,
) -> dict[str, Any]:
    """Returns the member's state: "online", "not responding", "stopped", or "unknown" if this user may not see the
    process.

    If the member answers, the member's own status is in "status". `links` makes the TLS contexts of the request.
    """
    files = MemberFiles.of(directory, name)
    try:
        member = recorded(files)
    except IllegalStateError as error:
        return {"name": name, "kind": kind, "state": "unknown", "folder": str(files.folder), "problem": str(error)}
    if member is None:
        return {"name": name, "kind": kind, "state": "stopped", "folder": str(files.folder)}
    report = {
        "name": name,
        "kind": member.kind or kind,
        "state": "online",
        "pid": member.pid,
        "host": member.host,
        "port": member.port,
        "folder": str(files.folder),
        "log_file": str(files.log_file),
    }
    try:
        report["status"] = _ask(member, "status" if report["kind"] == "locator" else "status member", links)
    except PywanError as error:
        report |= {"state": "not responding", "problem": str(error)}
    return report


def _ask(
    member: Recorded,
    op: str,
    links: Callable[[], Links] | None,
    timeout: float | None = None,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Returns the member's answer to a request. ConnectivityError: the member does not listen. `timeout`: None stands
    for ASK_TIMEOUT_S."""
    from pywan.transport.control import call_once
    from pywan.transport.links import PLAIN

    if not member.port:
        raise ConnectivityError(str(member.details.get("problem") or f"process {member.pid} does not listen yet"))
    address = (member.details.get("connect_to") or member.host, member.port)
    made = links() if links is not None else PLAIN
    way = made.locator if member.kind == "locator" else made.cluster
    timeout = ASK_TIMEOUT_S if timeout is None else timeout
    reply = call_once(address, op, timeout=timeout, way=way, _progress=on_progress, **fields)
    return {key: value for key, value in reply.items() if key != "ok"}


# --- called inside the member's process ---


def run_locator(
    name: str,
    options: Mapping[str, Any],
    *,
    directory: str | os.PathLike[str] | None = None,
    ready: Callable[[dict[str, Any]], None] = lambda report: None,
    on_hangup: Callable[[], None] | None = None,
) -> None:
    """Runs a locator in this process until a signal or a request stops the locator. `options` are the arguments of
    `pywan.Locator`.

    SIGHUP calls `on_hangup`. If `on_hangup` is None, SIGHUP stops the locator as SIGTERM does.
    """
    from pywan.site.locator import Locator

    files = MemberFiles.of(directory, name)
    _log_start(
        "locator", name, options, ("distributed_system_id", "bind_address", "port", "locators", "remote_locators")
    )
    with _own(files, "locator") as record:
        # If the bind address is missing, the locator listens at its own entry of `locators`.
        locator = Locator(name, dir=files.directory, **{"bind_address": None, **options})
        hangup = on_hangup and _both(locator.reload_certificates, on_hangup)
        with _stopping_by_signal(locator.shutdown_requested.set, hangup), locator:
            ready(record(locator.host, locator.port, locator.bind_address))
            locator.shutdown_requested.wait()
            log.info("locator %s stops", name)


def run_server(
    name: str,
    options: Mapping[str, Any],
    *,
    directory: str | os.PathLike[str] | None = None,
    ready: Callable[[dict[str, Any]], None] = lambda report: None,
    on_hangup: Callable[[], None] | None = None,
) -> None:
    """Runs a server in this process until a signal or a request stops the server. `options` are the arguments of
    `pywan.Cache`.

    SIGHUP calls `on_hangup`. If `on_hangup` is None, SIGHUP stops the server as SIGTERM does.
    """
    from pywan.member.cache import Cache

    files = MemberFiles.of(directory, name)
    _log_start("server", name, options, ("bind_address", "port", "locators"))
    with _own(files, "server") as record:
        early = threading.Event()  # Set by a signal before the cache exists.
        caches: list[Cache] = []
        hangup = on_hangup and _both(lambda: [each.reload_certificates() for each in caches], on_hangup)
        with _stopping_by_signal(early.set, hangup) as watch, Cache(name, dir=files.folder, **options) as cache:
            watch(cache.request_shutdown)
            caches.append(cache)
            report = record(cache.host, cache.port, options.get("bind_address") or "127.0.0.1")
            ready(
                {
                    **report,
                    "problems": [f"{problem:.500}" for problem in cache.configuration_problems[:MAX_PROBLEMS_TOLD]],
                }
            )
            cache.shutdown_requested.wait()
            log.info("server %s stops", name)


def _both(reload: Callable[[], object], on_hangup: Callable[[], None]) -> Callable[[], None]:
    """Returns the action of SIGHUP: `on_hangup`, then reading certificates again. The log is opened again first, so the
    lines about certificates are in the new log."""

    def hangup() -> None:
        on_hangup()
        try:
            reload()
        except PywanError as error:
            log.error("SIGHUP: certificates are not taken, the ones before stay: %s", error)

    return hangup


def _log_start(kind: str, name: str, options: Mapping[str, Any], shown: Iterable[str]) -> None:
    """Writes the first line of a member's log. Values known only later, for example a free port, are in a later
    line."""
    said = {what: options[what] for what in shown if options.get(what) not in (None, "")}
    given = "".join(f", {what.replace('_', '-')} {value}" for what, value in said.items())
    log.info("pywan %s starts %s %s: process %d%s", pywan.__version__, kind, name, os.getpid(), given)


def _open_in(files: MemberFiles, file: Path, flags: int) -> int:
    """Opens a file in the member's folder. DiskError: the file cannot be opened."""
    try:
        return open_own(file, flags)
    except OSError as error:
        raise errors.DiskError(
            f"the folder {files.folder} cannot be used: {error.strerror}; repair that, or choose another --dir"
        ) from error


@contextlib.contextmanager
def _own(files: MemberFiles, kind: str) -> Iterator[Callable[[str, int, str], dict[str, Any]]]:
    """Holds the member's name in its directory. Locks the name's lock file, and removes the pid file in the end.

    The context gives a function that writes the pid file.
    """
    pid = os.getpid()
    make_folder(files.folder, 0o700)
    descriptor = _open_in(files, files.lock_file, os.O_RDWR | os.O_CREAT)
    lock = in_child(open(descriptor, "r+b", buffering=0), io.FileIO.close)  # noqa: SIM115  # `finally` closes it.
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise IllegalStateError(
                        f"another process runs {files.name!r} in {files.folder}; stop it first, or choose another"
                        " name or --dir"
                    ) from None
                threading.Event().wait(0.05)

        def record(host: str = "", port: int = 0, connect_to: str = "") -> dict[str, Any]:
            if connect_to in ("0.0.0.0", "::", ""):
                connect_to = "127.0.0.1"
            details = {"kind": kind, "name": files.name, "host": host, "port": port, "connect_to": connect_to}
            temporary = files.folder / f".{files.name}.pid.new"
            try:
                temporary.unlink(missing_ok=True)
                with open(open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
                    file.write(f"{os.getpid()} {start_of(os.getpid())}\n{json.dumps(details)}\n")
                os.replace(temporary, files.pid_file)
            except OSError as error:
                raise errors.DiskError(
                    f"{files.pid_file} cannot be written: {error.strerror}; free space, or repair its rights"
                ) from error
            return {**details, "pid": os.getpid()}

        record()
        try:
            yield record
        finally:
            if os.getpid() == pid:  # A child keeps the file.
                with contextlib.suppress(OSError):
                    files.pid_file.unlink()
    finally:
        lock.close()


class _TakenSignals:
    """Signals that are written to a descriptor, until their former handlers are restored."""

    def __init__(self, numbers: Iterable[int], descriptor: int) -> None:
        self._before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        self._descriptor = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)

    def give_back(self) -> None:
        signal.set_wakeup_fd(self._descriptor)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def give_back_in_child(self) -> None:
        """Restores the handlers in a child. The descriptor belongs to the parent too, so a signal to the child would
        stop the parent."""
        self._descriptor = -1
        self.give_back()


@contextlib.contextmanager
def _stopping_by_signal(
    stop: Callable[[], None], on_hangup: Callable[[], None] | None
) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Makes every SIGTERM and SIGINT call `stop`, from a thread.

    A signal handler would run between any two steps of the main thread, and the main thread may hold locks that `stop`
    takes. The context gives a function `watch(other)`: from then on signals call `other` too, also a signal received
    before. SIGHUP calls `on_hangup` in the same way. If `on_hangup` is None, SIGHUP stops too.
    """
    actions = [stop]
    came = False
    pid = os.getpid()
    lock = threading.Lock()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def listen() -> None:
        nonlocal came
        while (number := os.read(read_end, 1)) not in (b"", b"\0"):
            if on_hangup is not None and number[0] == signal.SIGHUP:
                on_hangup()
                continue
            with lock:
                came = True
                for each in actions:
                    each()

    def watch(other: Callable[[], None]) -> None:
        with lock:
            actions.append(other)
            if came:
                other()

    taken = in_child(_TakenSignals(numbers, write_end), _TakenSignals.give_back_in_child)
    listener = EssentialThread(listen, name="signals")
    listener.start()
    try:
        yield watch
    finally:
        taken.give_back()
        if os.getpid() == pid:  # A child has no listener, and the pipe is the parent's.
            os.write(write_end, b"\0")
            listener.join()
        os.close(read_end)
        os.close(write_end)


RUNNERS: dict[str, Callable[..., None]] = {"locator": run_locator, "server": run_server}


class _Printable(logging.Formatter):
    """Formats lines so that a terminal obeys no control characters in the text. A message is one line; a traceback has
    several."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return printable(super().formatException(ei), lines=True)


def configure_logging(level: str = "info", stream: Any = None) -> None:
    """Sends this process's log to `stream` (None: standard error). ConfigurationError: the level is unknown."""
    word = values.to_word(level, "log-level", LOG_LEVELS)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Printable(LOG_FORMAT, datefmt="%Y-%m-%d %H:%M:%S"))
    logging.basicConfig(level=LOG_LEVELS[word], handlers=[handler], force=True)


def run_foreground(
    kind: str,
    name: str,
    options: Mapping[str, Any],
    *,
    directory: str | os.PathLike[str] | None = None,
    path: Iterable[str] = (),
    ready: Callable[[dict[str, Any]], None] = lambda report: None,
    on_hangup: Callable[[], None] | None = None,
) -> None:
    """Runs the member in this process. The log goes to standard error. `options` may also hold `log_level` and
    `classpath`.

    SIGHUP calls `on_hangup`. If `on_hangup` is None, SIGHUP stops a member that logs to a terminal (the terminal was
    closed), and has no effect on a member with another log.
    """
    options = dict(options)
    configure_logging(options.pop("log_level", None) or "info")
    if on_hangup is None and not sys.stderr.isatty():
        on_hangup = _say_no_log_file
    for entry in [*(options.pop("classpath", None) or "").split(os.pathsep), *path]:
        if entry and entry not in sys.path:
            sys.path.append(entry)
    RUNNERS[kind](name, options, directory=directory, ready=ready, on_hangup=on_hangup)


def _say_no_log_file() -> None:
    log.info("SIGHUP: the log goes to standard error, so there is no log file to open again")


def _open_log(files: MemberFiles) -> None:
    """Opens the member's log file, creates the file if need be, and sends standard output and standard error to the
    file. Raises OSError."""
    descriptor = open_own(files.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.set_blocking(descriptor, True)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


def _open_log_again(files: MemberFiles) -> None:
    """Goes on in a new log file after the old file was renamed. If the new file cannot be opened, the member goes on in
    the old file, and logs the failure."""
    try:
        _open_log(files)
    except OSError as error:
        log.error(
            "SIGHUP: %s cannot be opened again: %s; the log goes on in the old file", files.log_file, error.strerror
        )
    else:
        log.info("SIGHUP: the log file was opened again")


def _child(kind: str, name: str, descriptor: int) -> int:
    """Runs the detached process. Standard streams go to the log. The process writes one report to `descriptor`: ready,
    or an error."""
    os.set_inheritable(descriptor, False)
    # A SIGHUP before the member handles signals must not end the member.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    # At most one report. After the report, the descriptor's number may belong to another file.
    said: list[Mapping[str, Any]] = []

    def say(report: Mapping[str, Any]) -> None:
        if said:
            return
        said.append(report)
        try:
            os.write(descriptor, json.dumps(report).encode()[:MAX_REPORT_BYTES])
        except BrokenPipeError:
            # The starter of this member has ended before the member was ready. No process knows this member, so the
            # member must end.
            raise IllegalStateError(f"{kind} {name}: the process that started it is gone") from None
        os.close(descriptor)

    try:
        spec = json.loads(sys.stdin.buffer.read())
        files = MemberFiles.of(spec["directory"], name)
        try:
            make_folder(files.folder, 0o700)
            _open_log(files)
        except OSError as error:
            raise ConfigurationError(
                f"the folder {files.folder} cannot be used: {error.strerror}; choose another --dir"
            ) from None
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.chdir(files.folder)
        run_foreground(
            kind,
            name,
            spec["options"],
            directory=spec["directory"],
            path=spec["path"],
            ready=say,
            on_hangup=lambda: _open_log_again(files),
        )
        return 0
    except BaseException as error:
        if isinstance(error, PywanError):
            log.error("%s", error)
            report = {"error": str(error), "kind": type(error).__name__}
        else:
            log.exception("%s %s ended by an error of its own", kind, name)
            report = {"error": f"{type(error).__name__}: {error}", "kind": InternalError.__name__}
        with contextlib.suppress(OSError, PywanError):  # The starter may have ended.
            say(report)
        return 1


def main() -> int:
    kind, name, descriptor = sys.argv[1:]
    return _child(kind, name, int(descriptor))


if __name__ == "__main__":
    sys.exit(main())

"""Owns the fork server of a process that runs tests: child processes that run Python are forked from a process that has
imported pywan, instead of being started anew.

`ForkServer` takes the place of what `subprocess` starts a process with. The server is a process without threads that
has imported what a member and the program `pywan` import, and has made nothing. For each start it clones itself. The
clone is a child of the process that asked (CLONE_PARENT), so waiting, signals and exit statuses are those of any child.
It takes over descriptors, environment, folder, limits and session, and goes on as the program. What the server cannot
give starts as ever, for example another interpreter, other options of Python, or other libraries (`_job_of`).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import os
import pickle
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent.parent
IMPORTED = (
    "pywan.testing.site_processes",
    "pywan.testing.sites",
    "pywan.member.process",
    "pywan.cli.main",
    "pywan.cli.commands",
    "pywan.cli.output",
    "pywan.cli.session",
    "pywan.cli.shell",
)
# Python, the loader, the C library and OpenBLAS read them at the start: the child has to have those of the server.
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "ASAN_", "UBSAN_", "TSAN_", "LSAN_", "TZ")
_REQUEST_MAX = 100_000  # Bytes. A longer request starts as ever.
_FILES_MAX = 64  # Descriptors of a child.
_LIMITS = [getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]
_BOOT = "import sys; sys.path.insert(0, {folder!r}); from support import fork_server; fork_server.serve({file})()"


class Job(NamedTuple):
    """What the child is to become."""

    kind: str  # "-c", "-m" or "script".
    program: str  # The source, the module or the file.
    arguments: list[str]
    is_safe_path: bool
    command: list[str]
    environment: dict[bytes, bytes]
    folder: str
    files: list[int]  # The numbers that the descriptors of the request have in the child.
    new_session: bool
    process_group: int
    umask: int
    niceness: int
    cores: set[int]
    limits: list[tuple[int, int]]


class ForkServer:
    """The asking end, in a process that runs tests. `with` one, subprocesses start by it.

    Attributes:
        is_used: Whether starts are given to the server. Otherwise they are starts as ever.
        served: How many starts the server has given.
        pid: The id of the server's process. 0: it has not been started.
    """

    def __init__(self) -> None:
        self.is_used = True
        self.served = 0
        self.pid = 0
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[bytes, bytes] = {}
        self._ignored: set[int] = set()
        self._start_as_ever = subprocess._fork_exec  # type: ignore[attr-defined]

    def __enter__(self) -> ForkServer:
        subprocess._fork_exec = self._start  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        subprocess._fork_exec = self._start_as_ever  # type: ignore[attr-defined]
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
        self._socket = self._process = None
        self.pid = 0

    def _start(self, *given: Any) -> int:
        # A child that a test forked has the server's socket, and no children from it.
        if self.is_used and os.getpid() == self._owner and (asked := _job_of(given)) is not None:
            pid = self._ask(*asked)
            if pid:
                self.served += 1
                return pid
        return int(self._start_as_ever(*given))

    def _ask(self, job: Job, files: list[int]) -> int:
        """Returns the id of the child. 0: the server cannot give it."""
        message = pickle.dumps(job)
        if len(message) > _REQUEST_MAX:
            return 0
        with self._lock:
            if self._socket is None:
                self._begin()
            assert self._socket is not None
            if _ignored() != self._ignored or _at_start(job.environment) != _at_start(self._environment):
                return 0
            try:
                socket.send_fds(self._socket, [message], files)
                answer = self._socket.recv(16)
            except OSError:  # A descriptor is closed, or the server has ended.
                answer = b""
            if not answer:
                self._process.kill()
                self._end()
            return int(answer or b"0")

    def _begin(self) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Without PYTHONPATH, so that the path of each child has its own.
        environment = {name: value for name, value in os.environb.items() if name != b"PYTHONPATH"}
        self._environment, self._ignored = environment, _ignored()
        starts, subprocess._fork_exec = subprocess._fork_exec, self._start_as_ever  # type: ignore[attr-defined]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(folder=str(ROOT / "tests"), file=there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                cwd=ROOT,
                env={**environment, b"OPENBLAS_NUM_THREADS": b"1"},  # It would start threads.
            )
        finally:
            subprocess._fork_exec = starts  # type: ignore[attr-defined]
            there.close()
        self._socket, self.pid = here, self._process.pid


def _ignored() -> set[int]:
    """The signals that a child would ignore from its start on. Python itself ignores two, which are the child's own."""
    own = {signal.SIGPIPE, signal.SIGXFSZ}
    return {each for each in signal.valid_signals() - own if signal.getsignal(each) == signal.SIG_IGN}


def _umask() -> int:
    """The umask of this process. `os.umask` would change it for a moment."""
    return next(int(line.split()[1], 8) for line in open("/proc/self/status") if line.startswith("Umask:"))


def _at_start(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    names = tuple(name.encode() for name in _READ_AT_START)
    return {k: v for k, v in environment.items() if k.startswith(names) and k != b"PYTHONPATH"}


def _job_of(given: Sequence[Any]) -> tuple[Job, list[int]] | None:
    """Returns the job that arguments of `_fork_exec` ask for, and its descriptors. None: it has to start as ever."""
    try:
        (args, executables, close_fds, kept, cwd, env, p2cread, _, _, c2pwrite, _, errwrite, _, errpipe) = given[:14]
        (restore_signals, new_session, process_group, gid, gids, uid, umask, preexec, *_) = given[14:]
    except ValueError:  # Another version of Python.
        return None
    command = [os.fsdecode(each) for each in args]
    plain = close_fds and restore_signals and gid is gids is uid is preexec is None
    if not plain or os.fsencode(sys.executable) not in executables or signal.pthread_sigmask(signal.SIG_BLOCK, []):
        return None
    program = _program_of(command)
    try:
        # A relative folder is one of this process.
        folder = os.path.realpath(os.fsdecode(cwd)) if cwd is not None else os.getcwd()
        if program is None or not os.access(folder, os.X_OK) or not Path(folder).is_dir():
            return None
        standard = [
            p2cread if p2cread != -1 else 0,
            c2pwrite if c2pwrite != -1 else 1,
            errwrite if errwrite != -1 else 2,
        ]
        if any(os.isatty(file) for file in standard):
            return None
        if program[0] == "script" and not os.access(Path(folder, program[1]), os.R_OK):
            return None
    except OSError:  # The folder of this process is gone, or a descriptor is closed.
        return None
    kind, what, arguments, is_safe_path = program
    environment = dict(os.environb) if env is None else dict(each.partition(b"=")[::2] for each in env)
    job = Job(
        kind,
        what,
        arguments,
        is_safe_path,
        command,
        environment,
        folder,
        [0, 1, 2, *(each for each in kept if each not in (errpipe, 0, 1, 2))],
        bool(new_session),
        int(process_group),
        int(umask) if umask >= 0 else _umask(),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getaffinity(0),
        [resource.getrlimit(limit) for limit in _LIMITS],
    )
    files = [*standard, *job.files[3:]]
    if len(files) > _FILES_MAX or not all(_imports_this_pywan(each or folder) for each in _path_of(job)):
        return None
    return job, files


def _program_of(command: list[str]) -> tuple[str, str, list[str], bool] | None:
    """Returns the kind of a program, the program, its arguments, and whether -P is given. None: other options are."""
    rest = command[1:]
    is_safe_path = rest[:1] == ["-P"]
    if is_safe_path:
        rest = rest[1:]
    if len(rest) > 1 and (rest[0] == "-c" or (rest[0] == "-m" and rest[1].partition(".")[0] == "pywan")):
        return rest[0], rest[1], rest[2:], is_safe_path
    if rest and rest[0].endswith(".py"):
        return "script", rest[0], rest[1:], is_safe_path
    return None


def _path_of(job: Job) -> list[str]:
    """Returns what stands on the path of a job before the libraries: as Python makes it, absolute."""
    first = {"-c": "", "-m": job.folder, "script": os.path.dirname(os.path.realpath(Path(job.folder, job.program)))}
    more = [each for each in os.fsdecode(job.environment.get(b"PYTHONPATH", b"")).split(os.pathsep) if each]
    return [*([] if job.is_safe_path else [first[job.kind]]), *(os.path.join(job.folder, each) for each in more)]


def _imports_this_pywan(folder: str) -> bool:
    """Whether a folder on a path leads to the `pywan` that the server has imported, or to none."""
    return not os.path.exists(os.path.join(folder, "pywan", "__init__.py")) or os.path.realpath(folder) == str(ROOT)


# In the server


class _CloneArguments(ctypes.Structure):
    """`struct clone_args` of Linux."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")
    ]


class _Clones:
    """Clones this process as `os.fork` does, but for the clone's parent, which is the parent of this process.

    The C library keeps the id of the main thread (`pthread_kill` uses it). Its fork has the kernel write that id into
    the child, and so has this one. Its handlers of forks do not run: the counter of `pywan.forks` is as in a fresh
    process. Nobody holds a lock of it, as there is one thread.
    """

    _CLONE3 = 435
    _FLAGS = 0x00008000 | 0x01000000 | 0x00200000  # CLONE_PARENT, CLONE_CHILD_SETTID, CLONE_CHILD_CLEARTID.

    def __init__(self) -> None:
        self._call = ctypes.PyDLL(None, use_errno=True).syscall  # It keeps the GIL.
        self._call.restype = ctypes.c_long
        me, own = threading.get_ident(), threading.get_native_id()  # The address of the C library's `struct pthread`.
        words = (ctypes.c_int * 512).from_address(me)
        places = [n for n, word in enumerate(words) if word == own]
        if len(places) != 1:
            raise NotImplementedError("this C library keeps the thread's id elsewhere")
        self._place = me + places[0] * ctypes.sizeof(ctypes.c_int)

    def clone(self) -> int:
        """Returns the id of the clone, and 0 in the clone."""
        arguments = _CloneArguments(flags=self._FLAGS, child_tid=self._place)
        python = ctypes.pythonapi
        python.PyOS_BeforeFork()
        pid = self._call(self._CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))
        if pid == 0:
            python.PyOS_AfterFork_Child()
            threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
            return 0
        python.PyOS_AfterFork_Parent()
        if pid < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(pid)


def serve(file: int) -> Callable[[], object]:
    """Clones this process for each request, until the asking process has ended. Returns in each clone: what it has to
    call then."""
    libraries = sys.path[2:]  # Behind the folder of the tests and that of -c.
    for name in IMPORTED:
        importlib.import_module(name)
    clones = _Clones()
    gc.collect()
    gc.freeze()
    if len(os.listdir("/proc/self/task")) != 1:
        raise AssertionError("a thread was started by an import")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C ends the process that asks, and so this one.
    asking = socket.socket(fileno=file)
    while True:
        message, files, flags, _ = socket.recv_fds(asking, _REQUEST_MAX, _FILES_MAX)
        if not message:
            _end()
        job: Job = pickle.loads(message)
        if job.kind == "script":  # What is compiled once serves the next ones, too.
            _compiled(os.path.realpath(Path(job.folder, job.program)))
        if len(files) != len(job.files) or flags & socket.MSG_CTRUNC:
            pid = 0
        else:
            pid = clones.clone()
            if pid == 0:
                asking.close()
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                return _become(job, files, libraries)
        for each in files:
            os.close(each)
        asking.send(str(pid).encode())


def _end() -> NoReturn:
    os._exit(0)  # The server has nothing to end.


_codes: dict[str, tuple[tuple[int, int], Any]] = {}


def _compiled(path: str) -> Any:
    """Returns the code of a file. None: it cannot be read or compiled, which the program's own start will tell."""
    try:
        state = os.stat(path)
        key = state.st_mtime_ns, state.st_size
        if path not in _codes or _codes[path][0] != key:
            with io.open_code(path) as file:
                _codes[path] = key, compile(file.read(), path, "exec", dont_inherit=True)
        return _codes[path][1]
    except (OSError, SyntaxError, ValueError):
        return None


def _become(job: Job, files: list[int], libraries: list[str]) -> Callable[[], object]:
    """Makes this process that of the job. Returns what runs the program."""
    if job.new_session:
        os.setsid()
    if job.process_group >= 0:
        os.setpgid(0, job.process_group)
    os.umask(job.umask)
    if os.getpriority(os.PRIO_PROCESS, 0) != job.niceness:
        os.setpriority(os.PRIO_PROCESS, 0, job.niceness)
    if os.sched_getaffinity(0) != job.cores:
        os.sched_setaffinity(0, job.cores)
    _take_files(files, job.files)
    os.chdir(job.folder)
    os.environb.clear()
    os.environb.update(job.environment)
    for limit, value in zip(_LIMITS, job.limits, strict=True):
        if resource.getrlimit(limit) != value:
            resource.setrlimit(limit, value)
    path = _path_of(job)
    first = [] if job.is_safe_path else [path.pop(0)]
    sys.path[:] = [*first, *dict.fromkeys([*map(os.path.normpath, path), *libraries])]
    for name in ("support", __name__):  # The child may have another folder of that name on its path.
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    sys.orig_argv[:] = job.command
    main = sys.modules["__main__"].__dict__
    for name in set(main) - {
        "__name__",
        "__annotations__",
        "__builtins__",
        "__doc__",
        "__package__",
        "__spec__",
        "__loader__",
    }:
        del main[name]
    if job.kind == "-m":
        sys.argv[:] = ["-m", *job.arguments]
        sys.modules.pop(job.program, None)  # It runs again, under another name.
        return functools.partial(runpy._run_module_as_main, job.program)  # type: ignore[attr-defined]
    if job.kind == "-c":
        sys.argv[:] = ["-c", *job.arguments]
        return lambda: exec(compile(job.program, "<string>", "exec", dont_inherit=True), main)
    sys.argv[:] = [job.program, *job.arguments]
    file = os.path.join(job.folder, job.program)
    main["__file__"], main["__cached__"] = file, None
    code = _compiled(os.path.realpath(file))
    if code is None:
        with io.open_code(file) as source:
            code = compile(source.read(), file, "exec", dont_inherit=True)
    return functools.partial(exec, code, main)


def _take_files(files: list[int], numbers: list[int]) -> None:
    """Gives descriptors the numbers that they have in the child, and closes all others."""
    above = max(numbers) + 1
    held = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file, number in zip(held, numbers, strict=True):
        os.dup2(file, number)
    for number in set(range(max(held) + 1)) - set(numbers):
        with contextlib.suppress(OSError):
            os.close(number)

"""Children from the fork server are what fresh starts are: `support.fork_server`."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pywan.testing.processes import python_environment
from pywan.testing.waiting import eventually
from support.fork_server import ROOT, ForkServer

pytestmark = pytest.mark.lint

PYTHON = sys.executable
TESTS = str(ROOT / "tests")

SHOWS = """
import os, resource, signal, sys, threading
from pywan import _core
print(sys.argv, sys.path, sys.orig_argv, __name__, sorted(globals()), __spec__)
print(sorted(os.listdir("/proc/self/fd")), os.getcwd(), os.getppid(), sorted(os.environ.items()))
print(os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), os.umask(0), resource.getrlimit(resource.RLIMIT_FSIZE))
print([signal.getsignal(each) for each in sorted(signal.valid_signals())], signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(threading.get_native_id() == threading.main_thread().native_id == os.getpid(), threading.active_count())
print(_core.forks(), sys.stdin.read(), sys.stdout.encoding, sys.stdout.line_buffering, sys.flags.dev_mode)
print("an error", file=sys.stderr)
"""


@pytest.fixture
def server() -> Iterator[ForkServer]:
    with ForkServer() as made:
        yield made


def served(server: ForkServer, *command: object, **more) -> subprocess.CompletedProcess[str]:
    """The end of a process, which the server has given."""
    before = server.served
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=60, **more)
    assert server.served == before + 1
    return done


def fresh(server: ForkServer, *command: object, **more) -> subprocess.CompletedProcess[str]:
    server.is_used = False
    try:
        return subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=60, **more)
    finally:
        server.is_used = True


def seen(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "more",
    [{}, {"cwd": "/tmp"}, {"env": python_environment(ONE="1")}, {"start_new_session": True}, {"process_group": 0}],
    ids=lambda more: next(iter(more), "plain"),
)
@pytest.mark.parametrize("how", ["-c", "script"])
def test_a_child_sees_what_a_fresh_process_sees(server, tmp_path, how, more):
    script = tmp_path / "script.py"
    script.write_text(f"{SHOWS}\nprint(__file__)")
    command = [PYTHON, "-c", SHOWS, "one"] if how == "-c" else [PYTHON, script, "one", "two"]
    given = {"input": "what it reads", "env": dict(os.environ), **more}  # Libraries add variables unseen by Python.
    assert seen(served(server, *command, **given)) == seen(fresh(server, *command, **given))


def test_limits_and_umask_are_those_of_the_process_that_asks(server):
    before, umask = resource.getrlimit(resource.RLIMIT_FSIZE), os.umask(0o27)
    served(server, PYTHON, "-c", "")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, before[1]))
    os.umask(0o77)
    try:
        given = {"input": "", "env": dict(os.environ)}
        assert seen(served(server, PYTHON, "-c", SHOWS, **given)) == seen(fresh(server, PYTHON, "-c", SHOWS, **given))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        os.umask(umask)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import sys; sys.exit(7)", 7),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import atexit; atexit.register(print, 'at the end')", 0),
        # The C library finds the main thread by the id that it keeps.
        (
            "import signal, threading; ended = threading.main_thread().ident\n"
            "threading.Thread(target=signal.pthread_kill, args=(ended, signal.SIGTERM)).start(); signal.pause()",
            -signal.SIGTERM,
        ),
    ],
)
def test_a_child_ends_as_a_fresh_process_does(server, program, status):
    done = served(server, PYTHON, "-c", program)
    assert (done.returncode, done.stdout) == (status, fresh(server, PYTHON, "-c", program).stdout)


def test_the_program_runs_as_a_module(server):
    assert seen(served(server, PYTHON, "-m", "pywan", "--version")) == seen(
        fresh(server, PYTHON, "-m", "pywan", "--version")
    )


def test_descriptors_that_are_passed_have_the_same_numbers(server):
    read, write = os.pipe()
    with subprocess.Popen([PYTHON, "-c", f"import os; os.write({write}, b'told')"], pass_fds=[write]) as child:
        os.close(write)
        assert os.read(read, 10) == b"told"
        assert server.served == 1
    os.close(read)
    assert child.returncode == 0


def test_children_draw_other_random_numbers(server):
    program = "import random, uuid; print(random.random(), uuid.uuid4())"
    assert len({served(server, PYTHON, "-c", program).stdout for _ in range(3)}) == 3


def test_the_server_has_one_thread_and_no_file_but_its_socket(server):
    served(server, PYTHON, "-c", "")
    assert len(os.listdir(f"/proc/{server.pid}/task")) == 1
    assert len(os.listdir(f"/proc/{server.pid}/fd")) == 4


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ([PYTHON, "-X", "dev", "-c", ""], {}),
        ([PYTHON, "-m", "json.tool", "--help"], {}),
        (["/bin/sh", "-c", "true"], {}),
        ([PYTHON, "-c", ""], {"env": {**os.environ, "PYTHONHASHSEED": "1"}}),
        ([PYTHON, "-c", ""], {"preexec_fn": lambda: None}),
        ([PYTHON, "-c", ""], {"close_fds": False}),
    ],
)
def test_what_the_server_cannot_give_starts_as_ever(server, command, more):
    assert subprocess.run(command, capture_output=True, timeout=60, **more).returncode == 0
    assert server.served == 0


def test_a_tree_with_a_pywan_of_its_own_is_imported(server, tmp_path):
    (tmp_path / "pywan").mkdir()
    (tmp_path / "pywan" / "__init__.py").write_text("name = 'another'")
    done = subprocess.run(
        [PYTHON, "-c", "import pywan; print(pywan.name)"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, server.served) == ("another\n", 0)


def test_a_missing_folder_is_an_error_of_the_start(server, tmp_path):
    with pytest.raises(FileNotFoundError):
        subprocess.run([PYTHON, "-c", ""], cwd=tmp_path / "nothing")


def test_a_server_that_was_killed_is_replaced(server):
    served(server, PYTHON, "-c", "")
    os.kill(server.pid, signal.SIGKILL)
    assert subprocess.run([PYTHON, "-c", ""]).returncode == 0
    assert seen(served(server, PYTHON, "-c", "print(1)")) == (0, "1\n", "")


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"  # Only its parent, which may be slow, is to come.
    except FileNotFoundError:
        return True


def test_no_server_outlives_a_process_that_is_killed(server):
    program = (
        f"import os, subprocess, sys; sys.path.insert(0, {TESTS!r})\n"
        "from support import fork_server\n"
        "with fork_server.ForkServer() as server:\n"
        "    subprocess.run([sys.executable, '-c', ''])\n"
        "    print(server.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = fresh(server, PYTHON, "-c", program)
    assert done.returncode == -signal.SIGKILL
    eventually(lambda: is_gone(int(done.stdout)), what="the end of the server")


def test_a_forked_child_of_the_asking_process_starts_processes_of_its_own(server):
    served(server, PYTHON, "-c", "")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            told = subprocess.run([PYTHON, "-c", "import os; print(os.getppid())"], capture_output=True, text=True)
            status = 0 if int(told.stdout) == os.getpid() else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

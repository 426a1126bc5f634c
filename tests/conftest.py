"""Owns what tests share: sites on this machine, and a Spark session for the modules that need one."""

import gc
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pywan.security import passwords
from pywan.testing.waiting import eventually
from support.fork_server import ForkServer
from support.sites import Network
from support.threads import threads

# Examples may be slow to make when the machine is busy. That says nothing about what a test promises.
# They are others in each run, so a run needs few.
settings.register_profile("pywan", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pywan")

# Modules whose tests run in one worker, one after another, and the name of their group. One group has all tests of
# Spark, so no two Java machines run at once. The tests of each other module here share a fixture that is costly.
GROUPS = {
    "test_spark": "spark",
    "test_demo": "spark",
    "test_demo_feeds": "spark",
    "test_damaged_stores": "damaged stores",
    "test_golden": "golden",
    "test_refused": "refused",
    "test_sinks_dbapi": "postgresql",
    "test_sinks_kafka": "kafka",
}

# Modules for `make test-quick`: they need no second site, no process and no long wait. All others are marked `whole`.
QUICK = {
    "test_acknowledged",
    "test_addresses",
    "test_allowed_callbacks",
    "test_architecture",
    "test_broken",
    "test_buckets",
    "test_cache",
    "test_cache_xml",
    "test_cli_grammar",
    "test_cli_tables",
    "test_closed_regions",
    "test_columns",
    "test_conditional",
    "test_config",
    "test_configuration",
    "test_control_protocol",
    "test_core_basics",
    "test_core_sessions",
    "test_counters",
    "test_demo_parts",
    "test_discovery",
    "test_documents",
    "test_golden",
    "test_identity",
    "test_java",
    "test_ledger",
    "test_linearizability",
    "test_locator",
    "test_lz4",
    "test_management",
    "test_membership",
    "test_public_names",
    "test_queue_model",
    "test_refused",
    "test_stored_rows",
    "test_stubs",
    "test_table_model",
    "test_tables",
    "test_told_addresses",
    "test_types",
    "test_versions",
}


# Modules whose tests are about the start of a process, what it imports, its signals from the start on, its forks or its
# memory, or that start programs as their users do. Their processes are no forks of the fork server.
FRESH_STARTS = {
    "test_architecture",
    "test_build",
    "test_core_basics",
    "test_examples",
    "test_fork",
    "test_fork_server",
    "test_lz4",
    "test_memory",
    "test_nightly",
    "test_no_memory",
    "test_processes",
    "test_service",
    "test_signals",
    "test_spark",
    "test_store_places",
}
fork_server = ForkServer()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--begin-until",
        type=int,
        help="tests that have not begun by then (seconds since 1970) are skipped, and they come in any order",
    )


MARKS_OF_MAKE_TEST = "not long and not lint"
# How long the tests of each file took. A run of all tests leaves it here (tests/changed/rules.py uses it).
MEASURED = Path(__file__).resolve().parent.parent / "build/test-seconds.json"
seconds = Counter[str]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[Path(report.nodeid.partition("::")[0]).stem] += report.duration


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Only the process that has the reports of all workers writes them, and only of a run that came to its end and left
    no test out."""
    option = session.config.option
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return
    if hasattr(session.config, "workerinput") or option.keyword or option.markexpr != MARKS_OF_MAKE_TEST:
        return
    if any(Path(argument).resolve() == MEASURED.parent.parent / "tests" for argument in session.config.args):
        MEASURED.parent.mkdir(exist_ok=True)
        MEASURED.write_text(json.dumps({name: round(took, 1) for name, took in sorted(seconds.items())}, indent=0))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A module for `make lint` alone looks at the whole tree when it is imported, so `make test` does not import it."""
    if collection_path.suffix == ".py" and config.option.markexpr == MARKS_OF_MAKE_TEST:
        return "\npytestmark = pytest.mark.lint\n" in collection_path.read_text() or None
    return None


def pytest_collection() -> None:
    gc.disable()  # Nothing that collection makes becomes garbage.


def pytest_collection_finish() -> None:
    """What collection has made stays to the end: no later search for garbage looks at it."""
    gc.freeze()
    gc.enable()


def pytest_configure() -> None:
    """A shell has the commands that it runs in the background ignore Ctrl-C, and so their children. Tests send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fork_server.__enter__()


def pytest_unconfigure() -> None:
    fork_server.__exit__()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the modules that are not quick. They come first, so that no worker ends with one of their tests alone. What
    only `make nightly` runs is long too.
    """
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.long)
        if item.path.stem not in QUICK:
            item.add_marker(pytest.mark.whole)
    items.sort(key=lambda item: item.path.stem in QUICK)
    if (until := config.getoption("begin_until")) is not None:
        random.Random(until).shuffle(items)  # The same order in each worker.


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    needs_fresh = item.path.stem in FRESH_STARTS or "LD_PRELOAD" in os.environ
    fork_server.is_used = not needs_fresh and not os.environ.get("FRESH_STARTS")
    if time.time() > (item.config.getoption("begin_until") or float("inf")):
        pytest.skip("there is no time")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives every group to one worker, the largest first, and all other tests singly to the worker that is free."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return GROUPS.get(Path(nodeid.partition("::")[0]).stem, nodeid)

    return Groups(config, log)


@pytest.fixture(autouse=True)
def folder_that_outlives_the_test(request):
    """The folder of a test is removed when it has passed. So it is made first, and removed after all that uses it."""
    if "tmp_path" in request.fixturenames:
        request.getfixturevalue("tmp_path")


@pytest.fixture(scope="module")
def cheap_passwords():
    """A try of a password costs next to nothing, as one does not with the product: tests/cli/test_users.py tries
    that."""

    def scrypt(data: bytes, *, n: int, **more: Any) -> bytes:
        return hashlib.scrypt(data, n=16, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "hashlib", SimpleNamespace(scrypt=scrypt))
        yield


@pytest.fixture
def no_thread_left():
    before = threads()
    yield
    assert not threads() - before


@pytest.fixture
def network():
    """The sites of a test. At its end every ledger balances, and no thread is left."""
    before = threads()
    made = Network()
    try:
        yield made
        made.check_ledgers()
    finally:
        made.close()
    eventually(lambda: not threads() - before, what="the end of every thread")


@pytest.fixture
def two_sites(network):
    """NY sends its region `data` to LN."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    return ny, ln


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    """A real local Spark whose tasks may be tried four times. Its Java machine ends with the module: it takes no memory
    from other tests, and what goes wrong at its end is not told of another test."""
    sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed")
    from pywan.demo.spark_session import stop
    from pywan.java import JavaNotFoundError, ensure_java

    try:
        ensure_java(tmp_path_factory.mktemp("java"))
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("spark")
    logging = directory / "log4j2.properties"
    logging.write_text("rootLogger.level = off\n")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        sql.SparkSession.builder.master("local[2,4]")
        .appName("pywan tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # The best of compilers and garbage collectors are worth their time in longer lives.
        .config(
            "spark.driver.extraJavaOptions",
            f"-Dlog4j2.configurationFile={logging.as_uri()} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    stop(session)

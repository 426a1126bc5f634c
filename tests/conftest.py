"""Owns what tests share: sites on this machine, and the one Spark session of a run."""

import os
import sys
import threading

import pytest

from pywan.testing.waiting import eventually
from sites import Network


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Says how tests are divided among workers: `--dist loadgroup` gives a group to one worker, and other tests singly.

    One worker has all tests of Spark, so a run starts one Java machine. Tests that share a fixture of their module stay
    together too. Tests that take long come first, so that no worker ends with one of them alone.
    """
    for item in items:
        shared = {fixture[-1].scope for fixture in item._fixtureinfo.name2fixturedefs.values()} & {"module", "class"}
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif shared:
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
    items.sort(key=lambda item: not any(map(item.get_closest_marker, ("spark", "long", "whole"))))


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith("pywan-resolve")}


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


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A real local Spark whose tasks may be tried four times."""
    sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed")
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
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging.as_uri()}")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()

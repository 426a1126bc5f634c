"""Spark executors put rows into a real member's region: what arrives, how often, and what a failure says."""
import datetime
import sys

import pytest

pyspark = pytest.importorskip("pyspark")
from pyspark import TaskContext, cloudpickle  # noqa: E402

import pywan  # noqa: E402
from pywan import spark as pywan_spark  # noqa: E402
from pywan.spark import enqueue  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
cloudpickle.register_pickle_by_value(sys.modules[__name__])      # The executors cannot import the tests.


@pytest.fixture(scope="module")
def member(tmp_path_factory):
    directory = tmp_path_factory.mktemp("member")
    with pywan.Locator("locator", distributed_system_id=1, port=0) as locator:
        with pywan.Cache("server", locators=f"127.0.0.1[{locator.port}]", dir=directory) as cache:
            cache.locator_address = f"127.0.0.1[{locator.port}]"
            yield cache


@pytest.fixture
def target(member, request):
    """A fresh region, and where to find it. A sender to nowhere counts the events that happened in it."""
    name = f"r{abs(hash(request.node.name))}"
    sender = member.create_gateway_sender(name, remote_distributed_system_id=9, parallel=False)
    region = member.create_region(name, type="REPLICATE", gateway_sender_ids=[name])
    yield Target(region, sender, dict(locators=member.locator_address, region=name))
    member.destroy_region(name)
    sender.destroy()


class Target:
    def __init__(self, region, sender, where):
        self.region, self.sender, self.where = region, sender, where

    @property
    def events(self) -> int:
        return self.sender.ledger()["received"]


def test_a_frames_rows_arrive_with_their_keys_and_values(spark, target):
    frame = spark.range(10_000).selectExpr("cast(id as string) id", "id * 2 payload")
    summary = enqueue(frame, key="id", value="payload", **target.where)
    assert (summary.rows, summary.partitions, summary.repeated_partitions) == (10_000, 2, 0)
    assert summary.bytes > 10_000 * 8 and summary.seconds > 0
    assert len(target.region) == 10_000 and target.region["77"] == 154


def test_several_columns_become_one_dict_and_all_but_the_key_are_the_default(spark, target):
    frame = spark.sql("select 1L as key, 'x' as a, 2.5D as b, cast(null as string) as c, date'2020-01-02' as d, true as e")
    enqueue(frame, value=["a", "b"], **target.where)
    assert target.region[1] == {"a": "x", "b": 2.5}
    enqueue(frame, **target.where)
    assert target.region[1] == {"a": "x", "b": 2.5, "c": None, "d": datetime.date(2020, 1, 2), "e": True}
    enqueue(frame.select("key", "a"), **target.where)
    assert target.region[1] == "x"


def test_names_with_dots_and_binary_keys_work(spark, target):
    frame = spark.sql("select cast('k' as binary) as `the.key`, 'v' as `a.b`")
    enqueue(frame, key="the.key", value="a.b", **target.where)
    assert target.region[b"k"] == "v"


def test_operations_create_update_and_destroy_in_the_order_of_the_rows(spark, target):
    rows = [("a", "create", 1), ("b", "create", 2), ("a", "update", 3), ("b", "destroy", None), ("gone", "destroy", None)]
    frame = spark.createDataFrame(rows, "key string, op string, v int").coalesce(1)
    summary = enqueue(frame, value="v", operation="op", **target.where)
    assert summary.rows == 5
    assert dict(target.region.items()) == {"a": 3}


def test_pairs_of_an_rdd_arrive_as_python_objects(spark, target):
    pairs = [(f"k{n}", {"n": n, "list": [n, None]}) for n in range(2_500)] + [(("a", 1), b"bytes")]
    summary = enqueue(spark.sparkContext.parallelize(pairs, 3), **target.where)
    assert (summary.rows, summary.partitions) == (2_501, 3)
    assert target.region["k2499"] == {"n": 2499, "list": [2499, None]} and target.region[("a", 1)] == b"bytes"


def test_empty_partitions_and_an_empty_frame_are_nothing_special(spark, target):
    assert enqueue(spark.sparkContext.parallelize([(1, 2)], 4), **target.where).rows == 1
    assert enqueue(spark.range(0).selectExpr("id key", "id v"), **target.where).rows == 0


class FailsAfterItsRowsWereApplied(pywan_spark._WritePairs):
    """The first attempt of each task applies its rows; then its result is lost."""

    def __call__(self, partition, pairs):
        yield from super().__call__(partition, pairs)
        if TaskContext.get().attemptNumber() == 0:
            raise OSError("the executor is lost")


def test_a_task_that_is_tried_again_after_its_rows_were_applied_does_not_apply_them_twice(spark, target):
    write = FailsAfterItsRowsWereApplied(pywan_spark._Target(target.where["locators"], target.where["region"], b"r" * 16, 30.0))
    counts = spark.sparkContext.parallelize([(n, n) for n in range(4_000)], 2).mapPartitionsWithIndex(write).collect()
    assert [duplicate for *_, duplicate in counts] == [True, True]
    assert sum(rows for _, rows, _, _ in counts) == 4_000
    assert target.events == 4_000


def fail_in_the_first_attempt(partition, pairs):
    for n, pair in enumerate(pairs):
        if n == 1_500 and TaskContext.get().attemptNumber() == 0:
            raise OSError("the executor is lost")
        yield pair


def test_a_task_that_fails_half_way_leaves_nothing_of_that_attempt(spark, target):
    pairs = spark.sparkContext.parallelize([(n, n) for n in range(4_000)], 2).mapPartitionsWithIndex(fail_in_the_first_attempt)
    summary = enqueue(pairs, **target.where)
    assert (summary.rows, summary.repeated_partitions) == (4_000, 0)
    assert target.events == 4_000


def test_putting_a_frame_again_puts_its_rows_again(spark, target):
    frame = spark.range(100).selectExpr("id key", "id v")
    enqueue(frame, **target.where)
    enqueue(frame, **target.where)
    assert target.events == 200


def test_an_executor_does_not_import_what_only_the_command_line_needs(spark, target):
    enqueue(spark.sparkContext.parallelize([(1, 1)], 1), **target.where)
    loaded = spark.sparkContext.parallelize([0], 1).mapPartitions(lambda _: [sorted({m.split(".")[0] for m in sys.modules} | {
        m for m in sys.modules if m.startswith("pywan")})]).collect()[0]
    assert "pywan.client" in loaded
    assert not {"click", "rich", "defusedxml", "pywan.member", "pywan.cli", "pywan.config"} & set(loaded)


@pytest.mark.parametrize("options, problem", [
    (dict(kee="id"), "no option 'kee'; did you mean 'key'"),
    (dict(key="kee"), "key='kee': the DataFrame has no column of that name"),
    (dict(value="nested"), "'nested' is array<bigint>, which cannot be carried as a value: use to_json"),
    (dict(value="v", operation="v"), "operation column 'v' is bigint"),
    (dict(key="real"), "key column 'real' is double"),
    (dict(value="v", locators=""), "at least one locator"),
    (dict(value="v", locators="nonsense"), "not a locator address"),
    (dict(value="v", region=""), "not the name of a region"),
    (dict(value="v", timeout=0), "timeout=0"),
])
def test_what_cannot_be_used_is_refused_before_any_task_runs(spark, target, options, problem):
    frame = spark.range(2).selectExpr("id key", "id v", "array(id) nested", "cast(id as double) real")
    with pytest.raises(pywan.ConfigurationError, match=problem):
        enqueue(frame, **{**target.where, **options})
    assert target.events == 0


def test_what_is_no_frame_and_no_rdd_is_refused(target):
    with pytest.raises(pywan.ConfigurationError, match="a Spark DataFrame or an RDD of pairs, not builtins.list"):
        enqueue([(1, 2)], **target.where)


def test_an_unknown_region_is_named_by_the_error_that_the_driver_raises(spark, target):
    with pytest.raises(pywan.PywanError, match="region 'nowhere' is not on member"):
        enqueue(spark.range(2).selectExpr("id key", "id v"), **{**target.where, "region": "nowhere"})


def test_without_a_locator_the_error_says_where_it_was_looked_for(spark):
    with pytest.raises(pywan.ConnectivityError, match=r"127.0.0.1\[1\]"):
        enqueue(spark.range(2).selectExpr("id key", "id v"), locators="127.0.0.1[1]", region="data", timeout=2)


def test_a_row_without_a_key_fails_its_task_and_nothing_of_it_is_applied(spark, target):
    frame = spark.range(10).selectExpr("if(id = 7, null, id) key", "id v").coalesce(1)
    with pytest.raises(pywan.SerializationError, match="row 7"):
        enqueue(frame, **target.where)
    assert target.events == 0


def test_a_value_that_cannot_be_carried_names_its_type(spark, target):
    with pytest.raises(pywan.SerializationError, match="complex"):
        enqueue(spark.sparkContext.parallelize([("k", 1j)], 1), **target.where)


@pytest.mark.parametrize("element", ["ab", 7, ("k", "v", "more"), {"k": 1, "v": 2}, ("k",)])
def test_an_element_of_an_rdd_that_is_no_pair_is_named(spark, target, element):
    with pytest.raises(pywan.ConfigurationError, match=r"no pair \(key, value\) but") as caught:
        enqueue(spark.sparkContext.parallelize([("k", 1), element], 1), **target.where)
    assert repr(element) in str(caught.value)
    assert target.events == 0


@pytest.mark.parametrize("timeout", ["soon", None, True, 0, float("inf"), float("nan")])
def test_a_timeout_that_is_no_time_is_refused_by_name(target, timeout):
    with pytest.raises(pywan.ConfigurationError, match="timeout="):
        enqueue(None, **{**target.where, "timeout": timeout})

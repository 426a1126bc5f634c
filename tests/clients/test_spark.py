"""Spark executors put rows into a real member's region: what arrives, how often, and what a failure says."""

import datetime as dt
import sys
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark")
from pyspark import TaskContext, cloudpickle  # noqa: E402

import pywan  # noqa: E402
from pywan import spark as pywan_spark  # noqa: E402
from pywan.spark import enqueue  # noqa: E402

UTC = dt.UTC
pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # The executors cannot import the tests.


@pytest.fixture(scope="module")
def locator():
    with pywan.Locator("locator", distributed_system_id=1, port=0) as locator:
        yield locator


@pytest.fixture(scope="module")
def member(locator, tmp_path_factory):
    directory = tmp_path_factory.mktemp("member")
    with pywan.Cache("server", locators=f"127.0.0.1[{locator.port}]", dir=directory) as cache:
        yield cache


@pytest.fixture
def target(member, locator, request):
    """A fresh region, and where to find it. A sender to nowhere counts the events that happened in it."""
    name = f"r{abs(hash(request.node.name))}"
    sender = member.create_gateway_sender(name, remote_distributed_system_id=9, parallel=False)
    region = member.create_region(name, type="REPLICATE", gateway_sender_ids=[name])
    yield Target(region, sender, dict(locators=f"127.0.0.1[{locator.port}]", region=name))
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
    frame = spark.sql(
        "select 1L as key, 'x' as a, 2.5D as b, cast(null as string) as c, date'2020-01-02' as d, true as e"
    )
    enqueue(frame, value=["a", "b"], **target.where)
    assert target.region[1] == {"a": "x", "b": 2.5}
    enqueue(frame, **target.where)
    assert target.region[1] == {"a": "x", "b": 2.5, "c": None, "d": date(2020, 1, 2), "e": True}
    enqueue(frame.select("key", "a"), **target.where)
    assert target.region[1] == "x"


WIDE = "99999999999999999999999999999999999999"
# Spark's type, and the values of a column of it: Spark takes them from Python, and they are what arrives. (Maps of one
# entry: Spark mixes others.)
CASES: list[tuple[str, list[Any]]] = [
    ("decimal(38,0)", [Decimal(WIDE), Decimal("-" + WIDE), Decimal(0), Decimal(-1)]),
    ("decimal(38,38)", [Decimal(f"0.{WIDE}"), Decimal("0E-38"), Decimal("-1E-38")]),
    ("decimal(9,2)", [Decimal("1.50"), Decimal("0.00"), Decimal("-0.01"), Decimal("1000000.00")]),
    ("date", [date(1, 1, 1), date(1582, 10, 14), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)]),
    (
        "timestamp_ntz",
        [
            datetime(1, 1, 1),
            datetime(1969, 12, 31, 23, 59, 59, 999999),
            datetime(2024, 2, 29, 12, 0, 0, 1),
            datetime(9999, 12, 31, 23, 59, 59, 999999),
        ],
    ),
    (
        "timestamp",
        [
            datetime(1900, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime(2024, 2, 29, 12, tzinfo=UTC),
        ],
    ),
    ("interval day to second", [timedelta(days=-1, microseconds=1), timedelta(days=100_000, microseconds=999999)]),
    ("array<int>", [[1, None, -2_000_000_000], [], [None]]),
    ("array<array<string>>", [[["a", None], None, []], []]),
    (
        "array<struct<day:date,price:decimal(9,2)>>",
        [[{"day": date(1, 1, 1), "price": Decimal("1.10")}, None, {"day": None, "price": None}], []],
    ),
    (
        "struct<a:int,b:struct<c:string,d:array<binary>>>",
        [{"a": 1, "b": {"c": "x", "d": [b"\0", None]}}, {"a": None, "b": None}],
    ),
    (
        "map<string,array<timestamp_ntz>>",
        [{"a": [datetime(1969, 12, 31, 23, 59, 59, 999999), None]}, {"b": []}, {"c": None}, {}],
    ),
    (
        "map<date,map<bigint,double>>",
        [{date(1, 1, 1): {1: 0.5}}, {date(9999, 12, 31): {}}, {date(1970, 1, 1): {-1: None}}],
    ),
    ("map<decimal(5,1),boolean>", [{Decimal("1.5"): True}, {Decimal("-0.5"): None}]),
]


@pytest.mark.parametrize("kind, values", CASES, ids=[kind for kind, _ in CASES])
def test_every_type_arrives_as_its_python_value_alone_and_in_a_row(spark, target, kind, values):
    values = [*values, None]
    frame = spark.createDataFrame(list(enumerate(values)), f"key bigint, v {kind}")
    enqueue(frame, **target.where)
    for n, value in enumerate(values):
        found = target.region[n]
        assert found == value and type(found) is type(value) and repr(found) == repr(value)
        assert target.region.replace(n, value, value)  # The bytes are those of a put: it compares them.
    enqueue(frame.selectExpr("key", "v", "cast(key as string) as n", "array(v) as more"), **target.where)
    for n, value in enumerate(values):
        assert target.region[n] == {"v": value, "n": str(n), "more": [value]}
        assert target.region.replace(n, {"v": value, "n": str(n), "more": [value]}, None)


@pytest.mark.parametrize(
    "kind, keys",
    [
        (kind, values)
        for kind, values in CASES
        if kind.partition("(")[0] in ("decimal", "date", "timestamp", "timestamp_ntz")
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_keys_of_a_column_are_the_keys_of_the_same_python_values(spark, target, kind, keys):
    enqueue(spark.createDataFrame([(key, n) for n, key in enumerate(keys)], f"key {kind}, v int"), **target.where)
    assert {key: target.region[key] for key in keys} == {key: n for n, key in enumerate(keys)}


def test_every_type_reaches_the_other_site(spark, two_sites):
    ny, ln = two_sites
    row = {f"c{n}": values[0] for n, (_, values) in enumerate(CASES)}
    schema = ", ".join(["key bigint", *(f"c{n} {kind}" for n, (kind, _) in enumerate(CASES))])
    frame = spark.createDataFrame([(n, *row.values()) for n in range(100)], schema)
    enqueue(frame, locators=str(ny.locator.address), region="data")
    enqueue(frame.selectExpr("key + 100 as key", "c9 as v"), locators=str(ny.locator.address), region="data")
    ny.network.settle()
    assert len(ln.data) == 200
    assert all(ln.data[n] == row for n in range(100)) and all(ln.data[n + 100] == row["c9"] for n in range(100))
    assert ln.data.replace(7, row, row) and ny.data.replace(7, row, row)


def test_columns_are_found_by_name_in_whatever_order_they_stand(spark, target):
    frame = spark.sql("select 1 as b, 'put' as op, 'k' as the_key, 2 as a")
    enqueue(frame, key="the_key", value=["a", "b"], operation="op", **target.where)
    assert target.region["k"] == {"a": 2, "b": 1}
    enqueue(frame, key="the_key", operation="op", **target.where)
    assert target.region["k"] == {"b": 1, "a": 2}


def test_names_with_dots_and_binary_keys_work(spark, target):
    frame = spark.sql("select cast('k' as binary) as `the.key`, 'v' as `a.b`")
    enqueue(frame, key="the.key", value="a.b", **target.where)
    assert target.region[b"k"] == "v"


def test_operations_create_update_and_destroy_in_the_order_of_the_rows(spark, target):
    rows = [
        ("a", "create", 1),
        ("b", "create", 2),
        ("a", "update", 3),
        ("b", "destroy", None),
        ("gone", "destroy", None),
    ]
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
    write = FailsAfterItsRowsWereApplied(
        pywan_spark._Target(target.where["locators"], target.where["region"], b"r" * 16, 30.0)
    )
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
    pairs = spark.sparkContext.parallelize([(n, n) for n in range(4_000)], 2).mapPartitionsWithIndex(
        fail_in_the_first_attempt
    )
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
    loaded = (
        spark.sparkContext.parallelize([0], 1)
        .mapPartitions(
            lambda _: [
                sorted({m.split(".")[0] for m in sys.modules} | {m for m in sys.modules if m.startswith("pywan")})
            ]
        )
        .collect()[0]
    )
    assert "pywan.client" in loaded
    assert not {"click", "rich", "defusedxml", "pywan.member", "pywan.cli", "pywan.config.cache_xml"} & set(loaded)


@pytest.mark.parametrize(
    "options, problem",
    [
        (dict(kee="id"), "no option 'kee'; did you mean 'key'"),
        (dict(key="kee"), "key='kee': the DataFrame has no column of that name"),
        (
            dict(value="span"),
            (
                "'span' is interval year to month: interval year to month cannot be carried as a value: cast it to "
                "string, or use to_json"
            ),
        ),
        (
            dict(value=["v", "deep"]),
            (
                r"'deep' is array<struct<a:interval>> \(its part deep\[\]\.a\): interval cannot be carried as a "
                r"value: cast it"
            ),
        ),
        (
            dict(value="by_list"),
            (
                "'by_list' is map<array<bigint>,bigint>: a map whose keys are array<bigint> cannot be carried as a "
                "value: use map_entries"
            ),
        ),
        (
            dict(value="twice"),
            (
                "'twice' is struct<a:bigint,a:bigint>: a struct with two fields 'a' cannot be carried as a value: "
                "rename one of them"
            ),
        ),
        (
            dict(value="v", key="nested"),
            "key column 'nested' is array<bigint>, which cannot be carried as a key: cast it to string",
        ),
        (dict(value="v", operation="v"), "operation column 'v' is bigint"),
        (dict(key="real"), "key column 'real' is double"),
        (dict(value="v", locators=""), "at least one locator"),
        (dict(value="v", locators="nonsense"), "not a locator address"),
        (dict(value="v", region=""), "not the name of a region"),
        (dict(value="v", timeout=0), "timeout=0"),
    ],
)
def test_what_cannot_be_used_is_refused_before_any_task_runs(spark, target, options, problem):
    frame = spark.range(2).selectExpr(
        "id key",
        "id v",
        "array(id) nested",
        "cast(id as double) real",
        "interval '1-2' year to month span",
        "array(named_struct('a', make_interval(1))) deep",
        "map(array(id), id) by_list",
        "named_struct('a', id, 'a', id) twice",
    )
    with pytest.raises(pywan.ConfigurationError, match=problem):
        enqueue(frame, **{**target.where, **options})
    assert target.events == 0


def test_what_is_no_frame_and_no_rdd_is_refused(target):
    with pytest.raises(pywan.ConfigurationError, match=r"a Spark DataFrame or an RDD of pairs, not builtins.list"):
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


@pytest.mark.parametrize(
    "element",
    [
        "ab",
        *(pytest.param(each, marks=pytest.mark.nightly) for each in (7, ("k", "v", "more"), {"k": 1, "v": 2}, ("k",))),
    ],
)
def test_an_element_of_an_rdd_that_is_no_pair_is_named(spark, target, element):
    with pytest.raises(pywan.ConfigurationError, match=r"no pair \(key, value\) but") as caught:
        enqueue(spark.sparkContext.parallelize([("k", 1), element], 1), **target.where)
    assert repr(element) in str(caught.value)
    assert target.events == 0


@pytest.mark.parametrize("timeout", ["soon", None, True, 0, float("inf"), float("nan")])
def test_a_timeout_that_is_no_time_is_refused_by_name(target, timeout):
    with pytest.raises(pywan.ConfigurationError, match="timeout="):
        enqueue(None, **{**target.where, "timeout": timeout})

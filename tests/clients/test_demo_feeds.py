"""The feeds of the demo: rows of one key come in the feed's order, and exactly the right ones remain after the last."""

import csv
import gzip
import json

import pytest

from pywan.demo import feeds
from pywan.errors import ConfigurationError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180), pytest.mark.nightly]

ROWS = [
    ("create", "a", "one", "1"),
    ("create", "b", 'quoted "two", with a comma', "2"),
    ("update", "a", "three", ""),
    ("destroy", "b", "", ""),
    ("destroy", "never there", "", ""),
    ("create", "ü/c", "four", "007"),
    ("destroy", "a", "", ""),
    ("create", "a", "five", "5"),
]


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "feed.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["operation", "path", "text", "number"])
        writer.writerows(ROWS)
    return str(path)


def live(feed) -> dict:
    return {row[feed.key]: tuple(row[name] for name in feed.values) for row in feed.live.toArrow().to_pylist()}


def test_a_csv_files_live_rows_are_those_that_its_operations_leave(spark, csv_file):
    feed = feeds.from_file(spark, csv_file, "path", "operation")
    assert (feed.rows, feed.values) == (8, ("text", "number"))
    assert live(feed) == {"a": ("five", "5"), "ü/c": ("four", "007")}


def test_rows_of_one_key_stay_in_the_files_order(spark, tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("key,number\n" + "".join(f"k{n % 7},{n}\n" for n in range(2_000)))
    spark.conf.set("spark.sql.files.maxPartitionBytes", "2000")  # Several pieces, read out of order.
    try:
        feed = feeds.from_file(spark, str(path), "key")
        partitions = feed.frame.rdd.map(tuple).glom().collect()
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    seen = {}
    for rows in partitions:
        for key, number in rows:
            assert seen.get(key, -1) < int(number)
            seen[key] = int(number)
    assert seen == {f"k{n % 7}": n for n in range(1_993, 2_000)}
    assert sum(len({key for key, _ in rows}) for rows in partitions) == 7  # Each key in one partition.


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_parquet_and_json_lines_keep_their_types_and_nested_columns_become_text(spark, tmp_path, kind):
    rows = [{"id": 1, "price": 2.5, "tags": ["x", "y"]}, {"id": 2, "price": None, "tags": []}]
    path = tmp_path / f"feed.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow = pytest.importorskip("pyarrow.parquet")
        pyarrow.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
    assert live(feeds.from_file(spark, str(path), "id")) == {1: (2.5, '["x","y"]'), 2: (None, "[]")}


def test_generated_data_is_the_same_for_the_same_seed_and_holds_all_operations(spark):
    first, again, other = (feeds.market_data(spark, 5_000, seed) for seed in (1, 1, 2))
    assert first.rows == 5_000
    assert live(first) == live(again) != live(other)
    assert {row[0] for row in first.frame.select("operation").distinct().collect()} == set(feeds.OPERATIONS)


@pytest.mark.parametrize(
    "content, key, operation, problem",
    [
        ("key,v\na,1\n", "kee", None, "--key=kee: .* has no such column .it has key, v"),
        ("key,op,v\na,upsert,1\n", "key", "op", "'upsert' is none of create, update, destroy"),
        ("key,op,v\na,,1\n", "key", "op", "'.none.' is none of"),
        ("key,v\n,1\na,2\n", "key", None, "1 rows have no key"),
        ("key,v\n", "key", None, "has no rows"),
        ("key\na\n", "key", None, "there must be a column for the value"),
    ],
)
def test_a_file_that_cannot_be_fed_is_refused_with_what_is_wrong(spark, tmp_path, content, key, operation, problem):
    path = tmp_path / "feed.csv"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=problem):
        feeds.from_file(spark, str(path), key, operation)


def test_a_missing_file_and_an_unknown_kind_are_named(spark, tmp_path):
    with pytest.raises(ConfigurationError, match="there is no such file"):
        feeds.from_file(spark, str(tmp_path / "nowhere.csv"), "key")
    (tmp_path / "feed.xls").write_text("x")
    with pytest.raises(ConfigurationError, match=r"must end in .csv"):
        feeds.from_file(spark, str(tmp_path / "feed.xls"), "key")

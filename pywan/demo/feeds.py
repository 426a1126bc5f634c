"""Owns what the demo feeds: generated market data, or the rows of a file, as one DataFrame. The rows of a key keep
their order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pywan.errors import ConfigurationError

OPERATIONS = ("create", "update", "destroy")
PARTITIONS = 16  # Each is one task of Spark. So many show progress, and so few are cheap.
EVENTS_PER_KEY = 5  # Events of the generated feed for each key, on average.
_MAX_KEY_BYTES = 64 * 1024
_ORDER = "__pywan_order"  # A column that says where a row stands in the feed. The rows leave without it.
_BEFORE = "__pywan_before"  # A column with the operation of the row before, of the same key.
_SYMBOLS = [
    "AAPL",
    "MSFT",
    "NVDA",
    "IBM",
    "ORCL",
    "SAP",
    "SIE",
    "TM",
    "SONY",
    "BP",
    "SHEL",
    "GS",
    "JPM",
    "HSBC",
    "UBS",
    "VOD",
]


@dataclass(frozen=True)
class Feed:
    """Rows to be put, each key's rows in one partition and there in the feed's order."""

    frame: Any  # The columns key, operation (if any) and values.
    live: Any  # The key and values that must remain after the last row.
    key: str
    operation: str | None
    values: tuple[str, ...]
    rows: int
    idle_destroys: int  # Destroys of keys that are not there: they change nothing, so they make no event.
    source: str  # For people.

    @property
    def changes(self) -> int:
        """The events that the rows make in a region that was empty."""
        return self.rows - self.idle_destroys

    def release(self) -> None:
        self.frame.unpersist()


def market_data(spark: Any, events: int, seed: int = 1) -> Feed:
    """So many creates, updates and destroys of orders. Some keys are busy, many are not. `seed` repeats them."""
    from pyspark.sql import functions as F

    if events < 1:
        raise ConfigurationError(f"--events={events} must be at least 1")
    keys = max(1, events // EVENTS_PER_KEY)
    random = F.xxhash64(F.col("id"), F.lit(seed))
    share = F.pmod(random, F.lit(1_000_003)) / F.lit(1_000_003.0)
    dice = F.pmod(F.shiftright(random, 21), F.lit(100))
    number = F.floor(share * share * keys).cast("long")
    symbols = F.array(*[F.lit(symbol) for symbol in _SYMBOLS])
    rows = spark.range(0, events, 1, PARTITIONS).select(
        F.col("id").alias(_ORDER),
        F.format_string("order-%010d", number).alias("order"),
        F.when(dice < 12, "destroy").when(dice < 35, "create").otherwise("update").alias("operation"),
        F.element_at(symbols, (F.pmod(number, F.lit(len(_SYMBOLS))) + 1).cast("int")).alias("symbol"),
        F.when(dice % 2 == 0, "buy").otherwise("sell").alias("side"),
        (F.pmod(F.shiftright(random, 7), F.lit(90_000)) / 100.0 + 10.0).alias("price"),
        (F.pmod(F.shiftright(random, 13), F.lit(1_000)) + 1).cast("long").alias("quantity"),
        (F.lit(1_750_000_000_000) + F.col("id")).alias("time_ms"),
    )
    return _feed(rows, "order", "operation", F.col(_ORDER), f"market data, {events:,} events, seed {seed}")


def from_file(spark: Any, path: str, key: str, operation: str | None = None) -> Feed:
    """The rows of a CSV (with a header line; may be compressed), Parquet or JSON-lines file.

    A CSV's columns are text, exactly as they stand there. ConfigurationError if the file, a column or an operation is
    not what it should be.
    """
    from pyspark.sql import functions as F

    check_file(path)
    rows = _read(spark, path)
    for option, name in (("--key", key), ("--operation", operation)):
        if name is not None and name not in rows.columns:
            raise ConfigurationError(f"{option}={name}: {path} has no such column (it has {', '.join(rows.columns)})")
    # Spark may read a file in several pieces, in any order. Within a piece the ids ascend.
    order = F.struct(F.col("_metadata.file_path"), F.col("_metadata.file_block_start"), F.monotonically_increasing_id())
    rows = rows.select(order.alias(_ORDER), *[_portable(field) for field in rows.schema.fields])
    return _feed(rows, key, operation, F.col(_ORDER), Path(path).name)


def check_file(path: str) -> None:
    """ConfigurationError if there is no such file, or its name does not say what it holds."""
    if not Path(path).exists():
        raise ConfigurationError(f"--input={path}: there is no such file")
    if not Path(path).is_dir() and not _plain_name(path).endswith(
        (".csv", ".parquet", ".pq", ".json", ".jsonl", ".ndjson")
    ):
        raise ConfigurationError(f"--input={path}: the name must end in .csv, .csv.gz, .parquet, .json or .jsonl")


def _plain_name(path: str) -> str:
    """The name in lower case, without the ending that says how the file is compressed."""
    name = path.lower()
    for suffix in (".gz", ".bz2", ".zst"):
        name = name.removesuffix(suffix)
    return name


def _read(spark: Any, path: str) -> Any:
    name = _plain_name(path)
    if name.endswith(".csv"):
        # Quotes are doubled inside quotes (RFC 4180), which is not Spark's default.
        return (
            spark.read.option("header", True)
            .option("quote", '"')
            .option("escape", '"')
            .option("mode", "FAILFAST")
            .csv(path)
        )
    if name.endswith((".parquet", ".pq")) or Path(path).is_dir():
        return spark.read.parquet(path)
    return spark.read.option("mode", "FAILFAST").json(path)


def _portable(field: Any) -> Any:
    """The column in a type that a value can hold: nested ones as JSON text, decimals as text."""
    from pyspark.sql import functions as F, types as T

    column = F.col("`" + field.name.replace("`", "``") + "`")
    if isinstance(field.dataType, (T.ArrayType, T.MapType, T.StructType)):
        return F.to_json(column).alias(field.name)
    plain = (
        T.StringType,
        T.BinaryType,
        T.BooleanType,
        T.ByteType,
        T.ShortType,
        T.IntegerType,
        T.LongType,
        T.FloatType,
        T.DoubleType,
    )
    if isinstance(field.dataType, plain):
        return column
    return column.cast("string").alias(field.name)


def _feed(rows: Any, key: str, operation: str | None, order: Any, source: str) -> Feed:
    from pyspark import StorageLevel
    from pyspark.sql import functions as F

    quoted = F.col("`" + key.replace("`", "``") + "`")
    values = tuple(name for name in rows.columns if name not in (key, operation, _ORDER))
    if not values:
        raise ConfigurationError(f"{source}: beside the key there must be a column for the value")
    ordered = rows.repartition(PARTITIONS, quoted).sortWithinPartitions(order).persist(StorageLevel.MEMORY_AND_DISK)
    counted, idle = _count_and_check(ordered, quoted, order, operation, source)
    columns = [quoted, *([F.col(f"`{operation}`")] if operation else []), *[F.col(f"`{name}`") for name in values]]
    last = ordered.groupBy(quoted.alias(key)).agg(F.max_by(F.struct(*columns[1:]), order).alias("row"))
    if operation is not None:
        last = last.filter(F.col("row").getField(operation) != "destroy")
    live = last.select(F.col(f"`{key}`"), *[F.col("row").getField(name).alias(name) for name in values])
    return Feed(ordered.select(*columns), live, key, operation, values, counted, idle, source)


def _count_and_check(rows: Any, key: Any, order: Any, operation: str | None, source: str) -> tuple[int, int]:
    """How many rows there are, and how many of them destroy a key that is not there. ConfigurationError if a row cannot
    be put."""
    from pyspark.sql import Window, functions as F

    bad_operation, is_idle = F.lit(None).cast("string"), F.lit(False)
    if operation is not None:
        column = F.col(f"`{operation}`")
        bad_operation = F.when(column.isNull(), "(none)").when(~column.isin(*OPERATIONS), column)
        before = F.lag(column).over(Window.partitionBy(key).orderBy(order))
        rows = rows.withColumn(_BEFORE, before)
        is_idle = (column == "destroy") & (F.coalesce(F.col(_BEFORE), F.lit("destroy")) == "destroy")
    counts = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count(F.when(key.isNull(), 1)).alias("without_key"),
        F.max(bad_operation).alias("bad_operation"),
        F.count(F.when(is_idle, 1)).alias("idle_destroys"),
        F.max(F.length(key.cast("string"))).alias("longest_key"),
    ).collect()[0]
    if counts["rows"] == 0:
        raise ConfigurationError(f"{source} has no rows")
    if counts["without_key"]:
        raise ConfigurationError(f"{source}: {counts['without_key']:,} rows have no key; every row needs one")
    if counts["bad_operation"] is not None:
        raise ConfigurationError(
            f"{source}: the operation {counts['bad_operation']!r} is none of {', '.join(OPERATIONS)}"
        )
    if counts["longest_key"] > _MAX_KEY_BYTES:
        raise ConfigurationError(
            f"{source}: a key has {counts['longest_key']:,} characters; at most {_MAX_KEY_BYTES:,} bytes fit"
        )
    return int(counts["rows"]), int(counts["idle_destroys"])

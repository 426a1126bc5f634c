"""A table behind a queue: it equals the region, and every event is applied once. With SQLite and a real PostgreSQL."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
import types

import pytest

from pywan.errors import ConfigurationError, IllegalStateError
from pywan.sinks.dbapi import DbApiSink
from pywan.sinks.sql import Dialect
from pywan.testing.local_site import LocalSite
from pywan.testing.waiting import LIMIT_S, eventually
from support.databases import MariaDb, Postgres, SqliteFile, why_no_postgres
from support.sink_batches import Batch, destroy, put

TEXT = {"key": "VARCHAR(100)", "value": "TEXT"}


@pytest.fixture(scope="module")
def server():
    missing = why_no_postgres()
    if missing:
        pytest.skip(missing)
    pytest.importorskip("psycopg")
    with Postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    if request.param == "sqlite":
        yield SqliteFile(tmp_path)
    else:
        server = request.getfixturevalue("server")
        yield server
        server.forget()


@pytest.fixture
def lite(tmp_path):
    return SqliteFile(tmp_path)


@pytest.fixture
def cache():
    with contextlib.closing(LocalSite("ny", 1)) as site:
        yield site.start_member()


def sink_to(database, **more):
    return DbApiSink(database.connect, "orders", **{"create": TEXT, **more})


def rows(database, columns="key, value"):
    return sorted(database.run(f"SELECT {columns} FROM orders"))


def applied(database):
    return dict(database.run("SELECT key, n FROM applied"))


def feed(cache, sink, **attributes):
    queue = cache.create_async_event_queue("to-table", sink, batch_size=20, **attributes)
    return queue, cache.create_region("orders", type="REPLICATE", async_event_queue_ids=["to-table"])


# The table equals the region


@pytest.mark.parametrize("threads", [1, 3])
def test_the_table_equals_the_region(cache, database, threads):
    queue, orders = feed(cache, sink_to(database), dispatcher_threads=threads)
    for n in range(300):
        orders[f"k{n % 40}"] = f"v{n}"
        if n % 7 == 0:
            del orders[f"k{n % 40}"]
    assert queue.wait_until_flushed(LIMIT_S)
    assert rows(database) == sorted(orders.items()) and len(rows(database)) > 30


def test_an_event_whose_batch_comes_again_is_applied_once(cache, database):
    """The listener applies each batch, and its first answers are lost: as if the member were killed between the two."""
    sink = sink_to(database)
    sink.process_events(Batch(put("first", "", region="other")))  # Makes the tables.
    database.count_changes()
    lost = []

    def listener(events):
        sink.process_events(events)
        if len(lost) < 5:
            lost.append(events)
            raise ConnectionError("the answer is lost")
        return True

    queue, orders = feed(cache, listener, dispatcher_threads=1)
    for n in range(100):
        orders[f"k{n % 10}"] = f"v{n}"
    assert queue.wait_until_flushed(LIMIT_S)
    assert len(lost) == 5
    assert applied(database) == {f"k{n}": 10 for n in range(10)}


def test_two_changes_of_one_key_in_a_batch_are_applied_in_order(database):
    sink = sink_to(database)
    sink.process_events(Batch(put("a", "1"), put("a", "2"), destroy("a"), put("a", "3"), put("b", "1"), destroy("b")))
    assert rows(database) == [("a", "3")]


def test_a_batch_that_fails_changes_nothing(database):
    sink = sink_to(database, create={"key": "VARCHAR(100)", "value": "TEXT CHECK (value <> 'bad')"})
    sink.process_events(Batch(put("a", "1")))
    with pytest.raises(Exception, match=r"(?i)check"):
        sink.process_events(Batch(put("a", "2"), put("b", "bad"), first=2))
    assert rows(database) == [("a", "1")]
    sink.process_events(Batch(put("a", "2"), put("b", "good"), first=2).again())
    assert rows(database) == [("a", "2"), ("b", "good")]


def test_a_row_that_the_database_refuses_is_parked_with_its_words(cache, database):
    create = {"key": "VARCHAR(100)", "value": "TEXT CONSTRAINT no_bad_ones CHECK (value <> 'bad')"}
    queue, orders = feed(cache, sink_to(database, create=create), dispatcher_threads=1, park_after_tries=2)
    queue.pause()
    orders["a"], orders["b"], orders["c"] = "1", "bad", "3"
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    assert rows(database) == [("a", "1"), ("c", "3")]
    (parked,) = queue.parked()
    assert parked["key"] == "b" and "no_bad_ones" in parked["reason"]
    orders["b"] = "good"
    assert queue.wait_until_flushed(LIMIT_S)
    assert ("b", "good") in rows(database)


# Marks


def test_a_new_sink_skips_what_another_one_has_applied(database):
    batch = Batch(put("a", "1"), put("b", "1", partition=1), put("a", "2"))
    sink_to(database).process_events(batch)
    database.count_changes()
    sink_to(database).process_events(batch.again())
    longer = Batch(*batch.again(), put("a", "3"))
    sink_to(database).process_events(longer)
    assert applied(database) == {"a": 1} and rows(database) == [("a", "3"), ("b", "1")]


def test_another_life_region_and_queue_have_marks_of_their_own(database):
    sink = sink_to(database)
    for n, more in enumerate(({}, {"numbering": 2**64 - 1}, {"queue": "other"})):
        sink.process_events(Batch(put("a", str(n)), **more))
        assert rows(database) == [("a", str(n))]
    sink.process_events(Batch(put("b", "x", region="others")))
    assert len(rows(database)) == 2


def test_the_late_commit_of_a_former_primary_fails(database):
    """Both have read the mark; the other one commits first."""
    former, primary = sink_to(database), sink_to(database)
    first = Batch(put("a", "1"))
    former.process_events(first)
    primary.process_events(first.again())
    primary.process_events(Batch(put("a", "2"), put("a", "3"), first=2))
    database.count_changes()
    with pytest.raises(IllegalStateError, match="another member has applied"):
        former.process_events(Batch(put("a", "2"), first=2))
    assert rows(database) == [("a", "3")] and applied(database) == {}
    assert former.process_events(Batch(put("a", "2"), put("a", "3"), put("a", "4"), first=2).again())
    assert rows(database) == [("a", "4")] and applied(database) == {"a": 1}


def test_two_members_at_once_apply_each_event_once(database):
    sink_to(database).process_events(Batch(put("a", "0", region="other")))
    database.count_changes()
    batches = [Batch(*(put(f"k{k}", str(n)) for k in range(5)), first=5 * n + 1).again() for n in range(20)]
    refused = []

    def run():
        sink = sink_to(database)
        for batch in batches:
            for _ in range(100):
                try:
                    sink.process_events(batch)
                    break
                except Exception as error:
                    refused.append(error)
            else:
                raise AssertionError("it does not get on")
        sink.close()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert applied(database) == {f"k{k}": 20 for k in range(5)}
    assert ("k0", "19") in rows(database)


def test_a_refused_event_behind_which_the_queue_went_on_is_not_taken_for_done(database):
    """The member is killed after it went on, and before it has parked the event: all three come again."""
    create = {"key": "VARCHAR(100)", "value": "TEXT CHECK (value <> 'bad')"}
    batch = Batch(put("a", "1"), put("b", "bad"), put("c", "3"))
    sink = sink_to(database, create=create)
    for place in range(3):
        with contextlib.nullcontext() if place != 1 else pytest.raises(Exception, match=r"(?i)check"):
            sink.process_events(batch.one(place))
    assert rows(database) == [("a", "1"), ("c", "3")]
    database.count_changes()
    later = sink_to(database, create=create)
    with pytest.raises(Exception, match=r"(?i)check"):
        later.process_events(batch.again())
    batch[1].value = "good"  # As if the constraint were gone.
    later.process_events(batch)
    later.process_events(batch)
    sink_to(database, create=create).process_events(batch)
    assert applied(database) == {"b": 1} and len(rows(database)) == 3
    assert database.run("SELECT count(*) FROM pywan_marks") == [(1,)]


def test_new_events_with_sequences_of_the_past_are_refused(database):
    """The queue's disk store was put back to a copy: it gives sequences a second time."""
    sink_to(database).process_events(Batch(put("a", "1"), put("a", "2"), put("a", "3")))
    restored = sink_to(database)
    restored.process_events(Batch(put("a", "1")).again())
    with pytest.raises(IllegalStateError, match=r"restored from a copy.*0000000000000abc"):
        restored.process_events(Batch(put("b", "new"), first=2))
    database.run("DELETE FROM pywan_marks WHERE life = '0000000000000abc'")
    restored.process_events(Batch(put("b", "new"), first=2).again())
    assert rows(database) == [("a", "3"), ("b", "new")]


# The database goes away


class Flaky:
    """Connections that break, and a database that cannot be reached, when the test says so."""

    def __init__(self, database):
        self.database, self.is_away, self.opened = database, False, []

    def connect(self):
        if self.is_away:
            raise ConnectionError("the database is away")
        self.opened.append(self.database.connect())
        return self.opened[-1]

    def go_away(self):
        self.is_away = True
        for connection in self.opened:
            connection.close()


def test_a_database_that_goes_away_gets_the_batch_when_it_is_back(cache, lite):
    flaky = Flaky(lite)
    flaky.database = types.SimpleNamespace(connect=lambda: sqlite3.connect(lite.file, check_same_thread=False))
    queue, orders = feed(cache, DbApiSink(flaky.connect, "orders", create=TEXT), dispatcher_threads=1)
    orders["a"] = "1"
    assert queue.wait_until_flushed(LIMIT_S)
    flaky.go_away()
    orders["a"], orders["b"] = "2", "2"
    eventually(lambda: "the database is away" in queue.lag()["cause"], what="the cause of the lag")
    assert queue.queue_size == 2
    flaky.is_away = False
    assert queue.wait_until_flushed(LIMIT_S)
    assert rows(lite) == [("a", "2"), ("b", "2")]


def test_a_killed_postgresql_gets_the_batch_when_it_is_started_again(cache, server):
    queue, orders = feed(cache, sink_to(server), dispatcher_threads=2)
    orders["a"] = "1"
    assert queue.wait_until_flushed(LIMIT_S)
    server.count_changes()
    server.kill()
    for n in range(50):
        orders[f"k{n}"] = "2"
    eventually(lambda: queue.lag()["cause"].startswith("listener fails"), what="the cause of the lag")
    server.start()
    try:
        assert queue.wait_until_flushed(LIMIT_S)
        assert rows(server) == sorted(orders.items()) and applied(server) == {f"k{n}": 1 for n in range(50)}
    finally:
        server.forget()


def test_closing_the_queue_closes_the_connections(cache, lite):
    flaky = Flaky(types.SimpleNamespace(connect=lambda: sqlite3.connect(lite.file, check_same_thread=False)))
    _, orders = feed(cache, DbApiSink(flaky.connect, "orders", create=TEXT))
    orders["a"] = "1"
    eventually(lambda: lite.file.exists() and flaky.opened)
    cache.close()
    for connection in flaky.opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_a_connection_of_a_thread_that_has_ended_is_closed(lite):
    flaky = Flaky(types.SimpleNamespace(connect=lambda: sqlite3.connect(lite.file, check_same_thread=False)))
    sink = DbApiSink(flaky.connect, "orders", create=TEXT)
    for n in range(3):
        thread = threading.Thread(target=sink.process_events, args=(Batch(put("a", "1"), first=n + 1),))
        thread.start()
        thread.join(LIMIT_S)
    assert len(flaky.opened) == 3
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        flaky.opened[0].execute("SELECT 1")
    sink.close()


# Columns and keys


def test_columns_can_be_items_of_a_value(database):
    sink = sink_to(database, columns=["item", "count"], create={"key": "TEXT", "item": "TEXT", "count": "INTEGER"})
    sink.process_events(Batch(put("a", {"item": "pen", "count": 3, "more": []}), put("b", {"item": "ink"})))
    assert rows(database, "key, item, count") == [("a", "pen", 3), ("b", "ink", None)]
    with pytest.raises(TypeError, match=r"the value of 'c' in orders is no map.*17"):
        sink.process_events(Batch(put("c", 17), first=3))


def test_columns_can_be_made_by_a_function(database):
    def columns(event):
        return {"item": event.value[0]} if len(event.value) == 1 else {"item": event.value[0], "count": event.value[1]}

    sink = sink_to(database, columns=columns, create={"key": "TEXT", "item": "TEXT", "count": "INTEGER"})
    sink.process_events(Batch(put("a", ["pen", 3]), put("a", ["ink"]), put("b", ["ink"])))
    assert rows(database, "key, item, count") == [("a", "ink", 3), ("b", "ink", None)]


def test_columns_can_be_made_by_a_function_that_returns_a_row(database):
    made = {"key": "TEXT", "item": "TEXT", "count": "INTEGER"}
    sink = sink_to(database, columns=lambda event: tuple(event.value), create=made)
    sink.process_events(Batch(put("a", ["pen", 3]), put("b", ["ink", 1]), put("a", ["pen", 4])))
    assert rows(database, "key, item, count") == [("a", "pen", 4), ("b", "ink", 1)]
    whole = sink_to(database, columns=lambda event: [event.key, *event.value], create=made, mark_table="other_marks")
    whole.process_events(Batch(put("c", ["cap", 2])))
    assert rows(database, "key, item, count")[-1] == ("c", "cap", 2)


@pytest.mark.parametrize(
    ("row", "create", "words"),
    [
        (
            ("a", "pen", 3),
            TEXT,
            r"returned 3 values .*order of `create` \(key, value\), with or without those of the key",
        ),
        (("pen",), True, r"returned 1 values .*map from columns to values; a sequence .* only if `create` names"),
        ("pen", TEXT, r"returned 'pen' \(str\) .*map from columns to values"),
        (None, TEXT, r"returned None \(NoneType\)"),
        ({1: "pen"}, TEXT, r"returned a map with 1 in place of a column's name"),
    ],
)
def test_a_row_that_cannot_be_one_says_what_can(lite, row, create, words):
    sink_to(lite).process_events(Batch(put("first", "")))  # Makes the table.
    sink = sink_to(lite, columns=lambda event: row, create=create)
    with pytest.raises(TypeError, match=f"`columns` {words}"):
        sink.process_events(Batch(put("a", "1"), first=2))


def test_the_lag_says_what_a_function_of_columns_may_return(cache, lite):
    queue, orders = feed(cache, sink_to(lite, columns=lambda event: "pen"))
    orders["a"] = "1"
    eventually(
        lambda: "`columns` returned 'pen' (str) for the event of 'a'" in queue.lag()["cause"],
        what="that the lag says what is wrong",
    )


def test_a_key_can_have_several_columns(database):
    sink = sink_to(database, key=("year", "number"), create={"year": "INTEGER", "number": "INTEGER", "value": "TEXT"})
    sink.process_events(Batch(put((2026, 1), "a"), put((2026, 2), "b"), put((2026, 1), "c"), destroy((2026, 2))))
    assert rows(database, "year, number, value") == [(2026, 1, "c")]
    with pytest.raises(TypeError, match="is no tuple of 2: year, number"):
        sink.process_events(Batch(put("a", "b"), first=5))


def test_a_table_can_have_only_a_key(database):
    sink = sink_to(database, columns=[], create={"key": "TEXT"})
    sink.process_events(Batch(put("a", {}), put("a", {}), put("b", {})))
    assert rows(database, "key") == [("a",), ("b",)]


NASTY = 'so"me % table; DROP TABLE x --'


def test_names_are_quoted_whatever_they_hold(database):
    create = {f"{NASTY} key": "VARCHAR(50)", "%s value": "TEXT"}
    sink = DbApiSink(
        database.connect, [NASTY], key=f"{NASTY} key", value="%s value", mark_table=["100%"], create=create
    )
    sink.process_events(Batch(put("a", "1"), put("a", "2"), put("b", "1"), destroy("b")))
    sink.process_events(Batch(put("a", "3"), first=5))
    quoted = NASTY.replace('"', '""')
    assert database.run(f'SELECT "%s value" FROM "{quoted}"') == [("3",)]
    assert database.run('SELECT sequence FROM "100%"') == [(5,)]


def test_a_table_can_be_of_a_schema(server):
    server.run("CREATE SCHEMA shop")
    try:
        sink = DbApiSink(server.connect, "shop.orders", create=TEXT, mark_table="shop.marks")
        sink.process_events(Batch(put("a", "1")))
        assert server.run("SELECT value FROM shop.orders, shop.marks") == [("1",)]
    finally:
        server.run("DROP SCHEMA shop CASCADE")


# Modules and dialects


class Translating:
    """A module of another paramstyle: its statements and values, as it gives them to SQLite."""

    def __init__(self, style, connection):
        self.style, self.connection = style, connection

    def cursor(self):
        return TranslatingCursor(self.style, self.connection.cursor())

    def __getattr__(self, name):
        return getattr(self.connection, name)


class TranslatingCursor:
    def __init__(self, style, cursor):
        self.style, self.cursor = style, cursor

    def translated(self, statement, values):
        if values is None:
            return statement, ()
        if self.style == "format":
            assert isinstance(values, tuple)
            return statement % tuple("?" for _ in values), values
        assert isinstance(values, dict)
        return statement % {name: f":{name}" for name in values}, values

    def execute(self, statement, values=None):
        return self.cursor.execute(*self.translated(statement, values))

    def executemany(self, statement, rows):
        return self.cursor.executemany(self.translated(statement, rows[0])[0], rows)

    def __getattr__(self, name):
        return getattr(self.cursor, name)


@pytest.mark.parametrize("style", ["qmark", "numeric", "named", "format", "pyformat"])
@pytest.mark.parametrize("dialect", ["sqlite", "standard"])
def test_every_paramstyle_and_a_database_without_upsert(lite, style, dialect, monkeypatch):
    def connect():
        connection = lite.connect()
        return Translating(style, connection) if "format" in style else connection

    module = types.ModuleType("some_module")
    setattr(module, "paramstyle", style)
    monkeypatch.setitem(sys.modules, "some_module", module)
    monkeypatch.setattr(Translating, "__module__", "some_module.connections")
    named = {} if "format" in style else {"paramstyle": style}
    sink = DbApiSink(connect, ["100% orders"], create=TEXT, dialect=dialect, **named)
    sink.process_events(Batch(put("a", "1"), put("b", "1"), put("a", "2"), destroy("b"), put("c", "1")))
    sink.process_events(Batch(put("c", "2"), destroy("nothing"), first=6))
    assert sorted(lite.run('SELECT key, value FROM "100% orders"')) == [("a", "2"), ("c", "2")]


def test_another_module_for_postgresql_works_as_well(server):
    pg8000 = pytest.importorskip("pg8000.dbapi")
    try:
        sink = DbApiSink(
            lambda: pg8000.connect(user="pywan", host="127.0.0.1", port=server.port, database="postgres"),
            "orders",
            create=TEXT,
        )
        batch = Batch(put("a", "1"), put("b", "100%"), destroy("a"), put("a", "2"))
        sink.process_events(batch)
        sink.process_events(batch.again())
        assert rows(server) == [("a", "2"), ("b", "100%")]
        sink.close()
    finally:
        server.forget()


def test_mysql_is_written_in_its_own_words():
    assert Dialect("mysql", "pyformat").upsert("shop.orders", ["k`ey"], ["100%"]) == (
        "INSERT INTO `shop`.`orders` (`k``ey`, `100%%`) VALUES (%(p1)s, %(p2)s)"
        " ON DUPLICATE KEY UPDATE `100%%` = VALUES(`100%%`)"
    )


@pytest.mark.skipif(
    MariaDb.PROGRAM is None, reason="MariaDB is not installed (Debian: apt install mariadb-server-core)"
)
def test_a_real_mariadb_has_each_event_once():
    pytest.importorskip("pymysql")
    with MariaDb() as server:
        first, second = (DbApiSink(server.connect, ["100%`"], create=TEXT) for _ in range(2))
        batch = Batch(put("a", "1"), put("b", "100%"), destroy("a"), put("a", "2"))
        first.process_events(batch)
        second.process_events(batch.again())
        first.process_events(Batch(put("a", "3"), first=5))
        with pytest.raises(IllegalStateError, match="another member has applied"):
            second.process_events(Batch(put("a", "late"), first=5))
        second.process_events(Batch(put("a", "late"), put("a", "3"), first=5).again())
        assert sorted(server.run("SELECT * FROM `100%```")) == [("a", "3"), ("b", "100%")]
        assert server.run("SELECT sequence FROM pywan_marks") == [(6,)]
        first.close(), second.close()


# What cannot be used


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"connect": "orders.db"}, "connect has to be a function"),
        ({"dialect": "oracle"}, "dialect 'oracle': known are sqlite, postgresql, mysql, standard"),
        ({"paramstyle": "dollar"}, "paramstyle 'dollar': known are"),
        ({"key": ""}, "'' is no name of a column or table"),
        ({"table": "a\0b"}, "is no name"),
        ({"create": {"value": "TEXT"}}, "create has the columns value, and not the key: key"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_at_once(lite, arguments, words):
    with pytest.raises(ConfigurationError, match=words):
        DbApiSink(**{"connect": lite.connect, "table": "orders", **arguments})


def test_a_connection_that_commits_each_statement_is_refused(lite, database):
    connect = {
        SqliteFile: lambda: sqlite3.connect(lite.file, isolation_level=None),
        Postgres: lambda: __import__("psycopg").connect(database.dsn(), autocommit=True),
    }[type(database)]
    with pytest.raises(ConfigurationError, match="commits each statement by itself"):
        DbApiSink(connect, "orders").process_events(Batch(put("a", "1")))


def test_events_that_are_no_batch_of_a_queue_are_refused(lite):
    with pytest.raises(TypeError, match="the batches of a queue as they are, and no list"):
        sink_to(lite).process_events([put("a", "1")])


def test_without_create_a_missing_table_is_what_the_database_says(lite):
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        sink_to(lite, create=False).process_events(Batch(put("a", "1")))

"""The attributes of a member are one table: `Cache`, `start server`, properties and a cache.xml have what it has."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import pywan
from pywan.cli.commands import COMMANDS
from pywan.cli.commands.server_options import seconds_of, server_options_in
from pywan.cli.properties import Properties
from pywan.config.cache_xml import parse_bytes
from pywan.config.member_attributes import MemberAttributes, ServerOptions, resource_manager
from pywan.config.table import table

# Names that programs type. A further one may come; none may go or get another default.
ARGUMENTS = {
    "bind_address": "127.0.0.1",
    "port": 0,
    "cache_xml_file": None,
    "dir": None,
    "disk_dir": None,
    "hostname_for_clients": None,
    "join_timeout": 10.0,
    "conflict_resolver": None,
    "maximum_shutdown_wait_time": 0,
    "handover_time": 60.0,
    "call_timeout": None,
    "allow_callbacks": (),
    "maximum_tombstone_memory": 64,
    "maximum_backlog_memory": 512,
    "maximum_memory": None,
    "critical_heap_percentage": None,
    "eviction_heap_percentage": None,
    "ssl": None,
    "security": None,
}
SERVER = next(command for command in COMMANDS if command.name == "start server")
ROWS = {row.name: row for row in table(MemberAttributes)}
OPTIONS = {row.name: row for row in table(ServerOptions)}
# Texts and the value that each stands for, for rows that are not plain text.
TEXTS: dict[str, tuple[str, Any]] = {
    "port": ("5000", 5000),
    "allow_callbacks": ("shop.*,shop.filters:A", ("shop.*", "shop.filters:A")),
    "maximum_tombstone_memory": ("7", 7),
    "maximum_backlog_memory": ("8", 8),
    "maximum_memory": ("900", 900),
    "critical_heap_percentage": ("90.5", 90.5),
    "eviction_heap_percentage": ("80", 80.0),
    "maximum_shutdown_wait_time": ("-1", float("inf")),
    "handover_time": ("2.5", 2.5),
    "call_timeout": ("3", 3.0),
}


def test_a_cache_takes_what_the_table_has_and_keeps_the_names_that_programs_type():
    parameters = inspect.signature(pywan.Cache).parameters
    assert list(parameters) == list(ROWS)
    assert {name: each.default for name, each in parameters.items()}.items() >= ARGUMENTS.items()
    assert [name for name, each in parameters.items() if each.kind is not each.KEYWORD_ONLY] == ["name"]
    assert [name for name, each in parameters.items() if each.default is each.empty] == ["name", "locators"]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_attribute_is_an_option_with_a_variable_and_a_property(name):
    row = OPTIONS[name]
    option = SERVER.option(row.option)
    assert option is not None and option.variable == "PYWAN_" + row.option.upper().replace("-", "_")
    text = TEXTS.get(name, ("some-text", "some-text"))[0]
    properties = Properties()
    properties.add(row.option, text, "file:1", is_shown=True)
    assert server_options_in({}, properties.values) == {name: text}
    assert server_options_in({option.key: text}, {row.option: "weaker"}) == {name: text}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_text_of_an_option_is_read_as_the_argument_is(name):
    text, value = TEXTS.get(name, ("some-text", "some-text"))
    given: dict[str, Any] = {"locators": "h[1]", name: text}
    assert getattr(MemberAttributes.make("m", **given), name) == value


def test_a_text_that_no_member_could_use_is_refused_before_a_process_starts():
    with pytest.raises(pywan.ConfigurationError, match=r"^maximum-memory: 5 is out of range; allowed is .* from 32"):
        server_options_in({"maximum_memory": "5"})
    with pytest.raises(pywan.ConfigurationError, match=r"^handover-time: 'soon' is not a number of seconds"):
        seconds_of({"handover_time": "soon"}, "handover_time")
    assert seconds_of({"handover_time": "-1"}, "handover_time") == -1 and seconds_of({}, "handover_time") is None


def test_a_cache_xml_gives_what_neither_program_nor_command_gives():
    assert set(resource_manager()) == {"critical-heap-percentage", "eviction-heap-percentage"}
    xml = b'<cache><resource-manager critical-heap-percentage="60.5" eviction-heap-percentage="40"/></cache>'
    attributes = MemberAttributes.make("m", locators="h[1]", eviction_heap_percentage=30)
    filled = attributes.filled(parse_bytes(xml).member)
    assert (filled.critical_heap_percentage, filled.eviction_heap_percentage) == (60.5, 30)


def test_an_argument_too_many_without_a_name_is_refused():
    with pytest.raises(TypeError, match="2 arguments without names; only name"):
        pywan.Cache("m", "second", locators="127.0.0.1[1]")


def test_locators_may_be_a_list_of_addresses():
    given = ["127.0.0.1[1]", "127.0.0.1[2]"]
    assert MemberAttributes.make("m", locators=given).locators == given

"""Owns what can be configured of a member: a table with a row for each argument of `Cache`.

The arguments of `Cache`, the options of `start server`, properties, environment variables, `<resource-manager>` of a
cache.xml and a table of docs/configuration.md are made from the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from os import PathLike
from typing import Annotated, Any, Self

from pywan.base.addresses import check_port, parse_locators
from pywan.config.classes import to_callback_patterns
from pywan.config.table import Attribute, Attributes, Row, table
from pywan.config.values import MAX_WAIT_S, to_call_timeout, to_percent, to_wait_time
from pywan.errors import ConfigurationError

TOMBSTONE_MEMORY_MB = 64  # The default limit for the tombstones of one region.
BACKLOG_MEMORY_MB = 512  # The default limit of a member's budget for what waits.
MEMORY_MIN_MB = 32
CRITICAL_PERCENT = 95.0  # Part of maximum-memory: above, changes that need memory are refused.
EVICTION_PERCENT = 85.0  # Part of maximum-memory: above, the log warns.
RESOURCE_MANAGER = "resource-manager"  # The element of a cache.xml with attributes of the member.


def to_join_timeout(value: Any, what: str) -> float:
    """Reads a number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_WAIT_S:
        raise ConfigurationError(f"{what} {value!r} is not a number of seconds above 0, and at most {MAX_WAIT_S}")
    return value


def _to_any_port(value: Any, what: str) -> int:
    return check_port(value, what, lowest=0)


def _to_locators(value: Any, what: str) -> Any:
    """Reads what is no text: a list of addresses is as good. The member parses what is one."""
    if not isinstance(value, str):
        parse_locators(value)
    return value


def _as_given(value: Any, what: str) -> Any:
    """Reads nothing: the part of the member that uses the value checks the value."""
    return value


@dataclass(kw_only=True)
class ServerOptions:
    """The attributes of a member that `start server` and properties can give too."""

    locators: Annotated[str, Attribute("the site's locators: host[port], several with commas", read=_to_locators)]
    bind_address: Annotated[str, Attribute("where it listens, for control requests and clients' data")] = "127.0.0.1"
    port: Annotated[
        int,
        Attribute(
            "the port there", read=_to_any_port, lowest=1, highest=65535, also={0: "a free port"}, option="server-port"
        ),
    ] = 0
    hostname_for_clients: Annotated[
        str | None,
        Attribute(
            "the name told to others",
            unset="the bind address, or the address towards the locators if that is every interface",
        ),
    ] = None
    cache_xml_file: Annotated[
        str | PathLike[str] | None,
        Attribute("its senders, regions and receiver", read=_as_given, more="See [cache.xml](#cachexml)"),
    ] = None
    allow_callbacks: Annotated[
        Any,
        Attribute(
            "classes that may be named over the network: package.*, package.module, package.module:Class",
            read=to_callback_patterns,
            unset="no class",
            more="See [classes named over the network](#classes-named-over-the-network)",
        ),
    ] = ()
    maximum_tombstone_memory: Annotated[
        int,
        Attribute(
            "MB of a region that remember destroyed keys",
            lowest=1,
            highest=1 << 20,
            more="See [operations.md](operations.md#destroyed-keys)",
        ),
    ] = TOMBSTONE_MEMORY_MB
    maximum_backlog_memory: Annotated[
        int,
        Attribute(
            "MB that may wait for replicas and listeners",
            lowest=1,
            highest=1 << 20,
            more="That is the limit for changes that replicas have yet to acknowledge, for calls pending on these"
            " changes, for changes that listeners have yet to receive, and for cached replies of calls. While this"
            " memory is full, changes of shared regions wait. See"
            " [operations.md](operations.md#a-region-on-several-members)",
        ),
    ] = BACKLOG_MEMORY_MB
    maximum_memory: Annotated[
        int | None,
        Attribute(
            "MB that the process may take",
            lowest=MEMORY_MIN_MB,
            highest=1 << 30,
            unset="80 % of the machine or its cgroup",
            more="Regions and queues take most of it. See"
            " [operations.md](operations.md#a-member-near-its-limit-of-memory)",
        ),
    ] = None
    critical_heap_percentage: Annotated[
        float | None,
        Attribute(
            "from this part of maximum-memory on, changes that need memory are refused; 0: none is",
            read=to_percent,
            unset=f"{CRITICAL_PERCENT:g}",
            element=RESOURCE_MANAGER,
            more="0 to 100",
        ),
    ] = None
    eviction_heap_percentage: Annotated[
        float | None,
        Attribute(
            "from this part of maximum-memory on, the log warns; 0: it does not",
            read=to_percent,
            unset=f"{EVICTION_PERCENT:g}",
            element=RESOURCE_MANAGER,
            more="0 to 100. Nothing is evicted",
        ),
    ] = None
    maximum_shutdown_wait_time: Annotated[
        float,
        Attribute(
            "seconds that a server waits at its end for its senders' queues to empty; -1: until they are",
            read=to_wait_time,
        ),
    ] = 0
    handover_time: Annotated[
        float,
        Attribute(
            "seconds that a server waits at its end for other members to take over what only it has; -1: until they"
            " have",
            read=to_wait_time,
            more="Others take over the buckets of shared regions whose only whole replica is in this member. The log"
            " names lost entries. See [operations.md](operations.md#ending-a-member)",
        ),
    ] = 60
    call_timeout: Annotated[
        float | None,
        Attribute(
            "seconds that a call about a region of several members is tried",
            read=to_call_timeout,
            unset="10, or twice the site's member-timeout if that is longer",
            more="0.1 to 86,400, for the call as a whole. Then it ends with a `ConnectivityError`, or a bulk call with"
            " a `BatchError`. `cache.call_timeout` can be set while regions are shared. With less than twice"
            " `member-timeout`, calls end before another member takes over from a silent one"
            " ([operations.md](operations.md#a-region-on-several-members))",
        ),
    ] = None


@dataclass
class MemberAttributes(Attributes, ServerOptions):
    """The attributes of a member."""

    kind, title = "server", "cache"

    name: Annotated[
        str,
        Attribute(
            "the member's name",
            read=_as_given,
            more="It is unique in the site",
        ),
    ]
    _: KW_ONLY
    dir: Annotated[
        str | PathLike[str] | None,
        Attribute(
            "the folder for working files (overflow files, disk stores)",
            read=_as_given,
            unset="a temporary folder, which `close` removes",
            more="A server has the folder of its name in the `--dir` of its command",
        ),
    ] = None
    disk_dir: Annotated[
        str | PathLike[str] | None, Attribute("another name of `dir`, used when `dir` is not given", read=_as_given)
    ] = None
    join_timeout: Annotated[
        float,
        Attribute(
            "seconds that the constructor waits for a locator's reply",
            read=to_join_timeout,
            more="A server has half of its `--timeout`, and 10 at most",
        ),
    ] = 10
    conflict_resolver: Annotated[
        Any,
        Attribute(
            "a `GatewayConflictResolver`, as for `set_conflict_resolver`", read=_as_given, more="A class or an instance"
        ),
    ] = None
    ssl: Annotated[
        Mapping[str, Any] | None,
        Attribute(
            "the encryption of connections",
            read=_as_given,
            unset="no encryption",
            more="A map with the names of [ssl](#ssl): `{'enabled_components': 'all', ...}`",
        ),
    ] = None
    security: Annotated[
        Mapping[str, Any] | None,
        Attribute(
            "the member's credentials and the users whom the member admits",
            read=_as_given,
            unset="no credentials, and every user",
            more="A map with the names of [security](#security)",
        ),
    ] = None

    @property
    def folder(self) -> str | PathLike[str] | None:
        """The folder for working files. None: a temporary one."""
        return self.dir if self.dir is not None else self.disk_dir

    def filled(self, weaker: Mapping[str, Any]) -> Self:
        """Returns the attributes with values from `weaker` for those that are not given."""
        return replace(self, **{name: value for name, value in weaker.items() if getattr(self, name) is None})


def resource_manager() -> dict[str, Row]:
    """Returns the attributes of a member that a cache.xml can give, by their names there."""
    return {row.geode_name: row for row in table(ServerOptions) if row.attribute.element == RESOURCE_MANAGER}


__all__ = [
    "BACKLOG_MEMORY_MB",
    "CRITICAL_PERCENT",
    "EVICTION_PERCENT",
    "RESOURCE_MANAGER",
    "TOMBSTONE_MEMORY_MB",
    "MemberAttributes",
    "ServerOptions",
    "resource_manager",
]

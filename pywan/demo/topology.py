"""Owns which sites the demo has, where they listen, who sends to whom, and the files that say so."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import quoteattr

from pywan.cli.trial_certificates import AUTHORITY, make_certificates
from pywan.errors import ConfigurationError

REGION = "data"
LOCATOR_PORT = 10331  # The seeds' port; each site has an address of its own.
RECEIVER_PORT = 5000  # Geode's first port.
LINK_PORTS = 8  # How many ports the receiver behind the breakable link may move among.

# The senders of each site: what each site knows of the others.
TOPOLOGIES: dict[str, dict[str, tuple[str, ...]]] = {
    "star": {"ny": ("ln", "tk"), "ln": ("ny", "tk"), "tk": ("ny", "ln")},
    "chain": {"ny": ("ln",), "ln": ("ny", "tk"), "tk": ("ln",)},
    "hub-and-spoke": {"ny": ("ln", "tk"), "ln": ("ny",), "tk": ("ny",)},
    "ring": {"ny": ("ln",), "ln": ("tk",), "tk": ("ny",)},
}


@dataclass(frozen=True)
class Site:
    """One site: a locator and a server, both listening on the site's own loopback address."""

    name: str
    distributed_system_id: int
    address: str
    locator_port: int
    senders: tuple[str, ...]  # Names of the sites that it sends to; also the senders' ids.
    receiver_ports: tuple[int, int]  # First and last.
    hostname_for_senders: str = ""  # Where others reach its receiver, if not at `address`.

    @property
    def host(self) -> str:
        return f"{self.name}_host"

    @property
    def locator(self) -> str:
        return f"{self.host}[{self.locator_port}]"

    @property
    def locator_name(self) -> str:
        return f"locator_{self.name}"

    @property
    def server_name(self) -> str:
        return f"server_{self.name}"


@dataclass(frozen=True)
class Topology:
    """Three sites and how they are connected; the link into `cut_site` runs through a proxy that can be cut."""

    name: str
    sites: dict[str, Site]
    cut_site: str = "ln"
    hosts: str = field(init=False)  # For PYWAN_HOSTS: the seeds' host names on this machine.

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", ",".join(f"{site.host}={site.address}" for site in self.sites.values()))

    def ids(self) -> dict[str, int]:
        return {site.name: site.distributed_system_id for site in self.sites.values()}

    def remote_locators(self, site: Site) -> str:
        return ",".join(other.locator for other in self.sites.values() if other is not site)


def build(name: str) -> Topology:
    """The topology of that name on ports that are free now. ConfigurationError if there is none of that name."""
    if name not in TOPOLOGIES:
        raise ConfigurationError(f"--topology={name}: choose one of {', '.join(TOPOLOGIES)}")
    addresses = {"ny": "127.0.0.1", "ln": "127.0.0.2", "tk": "127.0.0.3"}
    link = "127.0.1.2"
    locator_port = _free_block([*addresses.values()], LOCATOR_PORT, 1)
    link_port = _free_block([addresses["ln"], link], RECEIVER_PORT, LINK_PORTS)
    sites = {}
    for number, (site, address) in enumerate(addresses.items(), 1):
        behind_link = site == "ln"
        sites[site] = Site(
            site,
            number,
            address,
            locator_port,
            TOPOLOGIES[name][site],
            receiver_ports=(link_port, link_port + LINK_PORTS - 1)
            if behind_link
            else (RECEIVER_PORT, RECEIVER_PORT + 500),
            hostname_for_senders=link if behind_link else "",
        )
    return Topology(name, sites)


def cache_xml(site: Site, ids: dict[str, int], *, persistent: bool = False) -> str:
    """The site's `cache.xml`, as in the seeds: a parallel sender per remote site, a receiver, the region."""
    kept = ' enable-persistence="true"' if persistent else ""
    senders = "".join(
        f'  <gateway-sender id={quoteattr(remote)} parallel="true"'
        f' remote-distributed-system-id="{ids[remote]}"{kept}/>\n'
        for remote in site.senders
    )
    first, last = site.receiver_ports
    link = f" hostname-for-senders={quoteattr(site.hostname_for_senders)}" if site.hostname_for_senders else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        "<cache>\n"
        f"{senders}"
        f'  <gateway-receiver bind-address="{site.address}" start-port="{first}" end-port="{last}"{link}/>\n'
        f'  <region name="{REGION}" refid="PARTITION{"_PERSISTENT" if persistent else ""}">\n'
        f'    <region-attributes gateway-sender-ids="{",".join(site.senders)}"/>\n'
        "  </region>\n"
        "</cache>\n"
    )


def write_configuration(topology: Topology, directory: Path, *, persistent: bool = False) -> dict[str, Path]:
    """Write every site's file into `directory`; returns them by site."""
    files = {}
    for site in topology.sites.values():
        files[site.name] = directory / f"{site.name}.xml"
        files[site.name].write_text(cache_xml(site, topology.ids(), persistent=persistent), encoding="utf-8")
    return files


def write_certificates(topology: Topology, directory: Path) -> dict[str, str]:
    """Makes a certificate for all sites and writes it into `directory`. Returns the map `ssl` of all processes.
    ConfigurationError if the extra `certificates` is not installed."""
    hosts = [host for site in topology.sites.values() for host in (site.host, site.address, site.hostname_for_senders)]
    files = make_certificates(directory / "tls", ["demo"], [host for host in hosts if host])
    return {
        "enabled_components": "all",
        "certificate": str(files["demo"][0]),
        "key": str(files["demo"][1]),
        "trusted_certificates": str(files[AUTHORITY][0]),
    }


def _free_block(addresses: list[str], first: int, count: int) -> int:
    """The first of `count` ports in a row free on every address, at `first` or above it in steps of `count`."""
    for start in range(first, first + 500 * count, count):
        if all(_is_free(address, port) for address in addresses for port in range(start, start + count)):
            return start
    raise ConfigurationError(
        f"no {count} free ports in a row from {first} on {', '.join(addresses)}: end what listens there"
    )


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigurationError(
                    f"{address} is not an address of this machine: the demo needs Linux's whole 127.0.0.0/8"
                ) from None
            return False
    return True

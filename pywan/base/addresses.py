"""Owns how hosts and ports are written, parsed and looked up. It opens no connection (layer 2).

The grammar is Geode's: `host[port]`, or `host@address[port]`, where the part behind the @ is the address to connect to.
`host:port` is accepted too. Names are looked up in `PYWAN_HOSTS` first. It holds pairs
(`ny_host=127.0.0.1,ln_host=127.0.0.2`), or the path of a file in the form of hosts(5). So several sites can run on one
machine under their own names.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from pywan.base.files import FileError, read_regular
from pywan.base.names import is_host, quoted
from pywan.base.threads import Thread
from pywan.errors import ConfigurationError, ConnectivityError
from pywan.forks import in_child

HOSTS_VARIABLE = "PYWAN_HOSTS"
MAX_LOCATORS = 64  # The limit for one list. A longer list is a mistake.
MAX_HOSTS_FILE_BYTES = 1 << 20
LOOKUP_CACHE_S = 30.0  # The system's answer for a name is used for so long.
FAILED_LOOKUP_CACHE_S = 3.0  # A name that was not found is not looked up again for so long.

WILDCARDS = ("", "0.0.0.0", "::")  # To listen on: every interface. To connect to: invalid, or this machine itself.

_BRACKETS = re.compile(r"^(?P<host>[^\[\]]*)\[(?P<port>[^\[\]]*)\]$")


class Address(NamedTuple):
    """A host (name or number) and a port, written `host[port]`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}[{self.port}]"


def check_port(port: object, what: str, *, lowest: int = 1) -> int:
    """Returns `port` as an int. ConfigurationError if it is not between `lowest` (0 if any free port will do) and
    65535."""
    try:
        number = int(str(port))
    except ValueError:
        number = -1
    if isinstance(port, bool) or not lowest <= number <= 65535:
        raise ConfigurationError(f"{what}: port {port!r} is not a number from {lowest} to 65535")
    return number


def parse_address(text: str) -> Address:
    """Parses one `host[port]`, `host@address[port]` or `host:port`. ConfigurationError if it has another form."""
    entry = text.strip()
    match = _BRACKETS.match(entry)
    if match:
        host, port = match["host"].strip(), match["port"].strip()
    elif entry.count(":") == 1:
        host, port = (part.strip() for part in entry.split(":"))
    else:
        raise ConfigurationError(
            f"{quoted(text)} is not a locator address; write host[port], for example 127.0.0.1[10334]"
        )
    if "@" in host:
        host = host.rsplit("@", 1)[1].strip()
    if not is_host(host):
        raise ConfigurationError(f"{quoted(text)} names no usable host; write host[port], for example 127.0.0.1[10334]")
    return Address(host, check_port(port, f"address {text!r}"))


def parse_locators(text: str | Iterable[str] | None) -> list[Address]:
    """Returns the addresses of a comma-separated list (or of an iterable of entries), in order, each once.

    Names are not looked up here: one unknown host in a list must not make the others useless.
    """
    if not text:
        return []
    address = getattr(text, "address", None)
    if address is not None:
        raise ConfigurationError(
            f"locators={text!r:.120} is an object, and not the address of a locator; write locators={str(address)!r},"
            " which is str(locator.address)"
        )
    if not isinstance(text, Iterable):
        raise ConfigurationError(f"locators={text!r:.120} is no text such as '127.0.0.1[10334]', and no list of such")
    entries = text.split(",") if isinstance(text, str) else [str(entry) for entry in text]
    addresses = list(dict.fromkeys(parse_address(entry) for entry in entries if entry.strip()))
    if len(addresses) > MAX_LOCATORS:
        raise ConfigurationError(f"{len(addresses)} locators in one list; at most {MAX_LOCATORS} are allowed")
    return addresses


def is_number(host: str) -> bool:
    """Returns whether `host` is an IP address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(ip: str) -> bool:
    """Returns whether `ip` is an address by which a machine reaches only itself."""
    try:
        return ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False


def check_told_host(host: str | None, what: str) -> str | None:
    """Returns `host`, which others are told to connect to. None if it is None or "". ConfigurationError if nobody can
    connect to it."""
    if not host:
        return None
    try:
        parse_address(f"{host}[1]")
    except ConfigurationError:
        raise ConfigurationError(f"{what}: {host!r} is not a host name or address that others can connect to") from None
    if host in WILDCARDS:
        raise ConfigurationError(
            f"{what}: {host} means every interface of a machine, so others cannot connect to it; name the address by"
            " which they reach this machine, or leave it out"
        )
    return host


def resolve(host: str, timeout: float | None = None) -> str:
    """Returns the IP address of `host`. It asks `PYWAN_HOSTS` first, then the system's resolver.

    It waits at most `timeout` seconds for the resolver. ConnectivityError if the name is unknown or the answer is late.
    ConfigurationError if `PYWAN_HOSTS` itself cannot be used.
    """
    mapped = _hosts().get(host.lower())
    if mapped is not None:
        return mapped
    if is_number(host):
        return host
    return _lookups.find(host, timeout)


def _hosts() -> dict[str, str]:
    """Returns the table of PYWAN_HOSTS. It is read again when the variable or the file has changed."""
    global _hosts_cache
    setting = os.environ.get(HOSTS_VARIABLE, "").strip()
    if not setting:
        return {}
    stamp = None
    if "=" not in setting:
        try:
            stat = os.stat(setting)
        except OSError as error:
            raise ConfigurationError(
                f"{HOSTS_VARIABLE}={setting!r} is neither name=address pairs nor a readable file: {error.strerror}"
            ) from None
        stamp = (stat.st_mtime_ns, stat.st_size)
    cached_setting, cached_stamp, table = _hosts_cache
    if cached_setting == setting and cached_stamp == stamp:
        return table
    table = _hosts_from_pairs(setting) if stamp is None else _hosts_from_file(setting)
    _hosts_cache = (setting, stamp, table)
    return table


def _hosts_from_pairs(setting: str) -> dict[str, str]:
    """Reads `name=address,name=address`."""
    table = {}
    for pair in filter(None, (part.strip() for part in setting.split(","))):
        name, separator, ip = (part.strip() for part in pair.partition("="))
        if not separator or not name or not is_number(ip):
            raise ConfigurationError(f"{HOSTS_VARIABLE}: {pair!r} is not name=IP-address (as in ny_host=127.0.0.1)")
        table[name.lower()] = ip
    return table


def _hosts_from_file(path: str) -> dict[str, str]:
    """Reads a file in the form of hosts(5)."""
    table: dict[str, str] = {}
    try:
        text = read_regular(path, MAX_HOSTS_FILE_BYTES).data.decode()
    except (FileError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{HOSTS_VARIABLE}: {path} {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split("#", 1)[0].split()
        if not fields:
            continue
        if len(fields) < 2 or not is_number(fields[0]):
            raise ConfigurationError(f"{path}:{number}: expected an IP address and names, found {line.strip()!r}")
        for name in fields[1:]:
            table.setdefault(name.lower(), fields[0])
    return table


_hosts_cache: tuple[str, object, dict[str, str]] = ("", None, {})


class _Lookup:
    """One question to the system's resolver. The answer is there when `done` is set."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.ip: str | None = None
        self.problem = ""
        self.believed_until = float("inf")  # In seconds of time.monotonic().


class _Lookups:
    """Asks the system's resolver in threads, because the resolver itself has no time limit.

    There is never more than one thread for a name. A caller waits no longer than its own limit.
    """

    LIMIT = 256  # The number of names that are remembered.

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_host: dict[str, _Lookup] = {}

    def find(self, host: str, timeout: float | None) -> str:
        """Returns the IP address of `host`. ConnectivityError if it is unknown, or if there is no answer within
        `timeout` seconds."""
        now = time.monotonic()
        with self._lock:
            lookup = self._by_host.get(host)
            if lookup is None or lookup.believed_until < now:
                if len(self._by_host) >= self.LIMIT:
                    self._forget_old(now)
                lookup = _Lookup()
                try:
                    Thread(self._ask, host, lookup, name=f"pywan-resolve-{host}").start()
                except (RuntimeError, MemoryError) as error:
                    raise ConnectivityError(
                        f"host {host!r}: the name service could not be asked: {error or 'no memory'}"
                    ) from None
                self._by_host[host] = lookup
        if not lookup.done.wait(timeout):
            raise ConnectivityError(f"host {host!r}: no answer from the name service within {timeout:.1f} s")
        if lookup.ip is None:
            raise ConnectivityError(
                f"host {host!r} is unknown ({lookup.problem}); check the name, or map it with"
                f" {HOSTS_VARIABLE}={host}=<IP address>"
            )
        return lookup.ip

    def _forget_old(self, now: float) -> None:
        self._by_host = {h: looked_up for h, looked_up in self._by_host.items() if looked_up.believed_until >= now}
        while len(self._by_host) >= self.LIMIT:
            del self._by_host[next(iter(self._by_host))]

    @staticmethod
    def _ask(host: str, lookup: _Lookup) -> None:
        """Asks the system's resolver, and puts the answer into `lookup`. It runs in a thread of its own."""
        try:
            looked_up = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            # IPv4 first: a listener on 127.0.0.1 or 0.0.0.0 is the usual case.
            looked_up.sort(key=lambda entry: entry[0] != socket.AF_INET)
            lookup.ip = str(looked_up[0][4][0])
        except (OSError, UnicodeError, IndexError) as error:
            lookup.problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
        valid_s = LOOKUP_CACHE_S if lookup.ip else FAILED_LOOKUP_CACHE_S
        lookup.believed_until = time.monotonic() + valid_s
        lookup.done.set()


_lookups = in_child(_Lookups(), _Lookups.__init__)  # A child asks again: the threads that were asking are its parent's.

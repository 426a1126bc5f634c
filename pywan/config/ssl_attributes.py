"""Owns what can be configured of the encryption of a process: a table with a row for each option.

Options of commands, properties, environment variables, the map `ssl` of Python and a table of docs/configuration.md are
made from the rows. What the files hold is looked at where they are used (transport/contexts.py).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pywan.config.table import Attribute, Attributes, table
from pywan.config.values import to_words
from pywan.errors import ConfigurationError

CLUSTER, GATEWAY, LOCATOR, SERVER = "cluster", "gateway", "locator", "server"
COMPONENTS = (CLUSTER, GATEWAY, LOCATOR, SERVER)
ANY = "any"
PROTOCOLS = ("TLSv1.2", "TLSv1.3")


def to_components(value: Any, what: str) -> tuple[str, ...]:
    """Reads names of components. `all` stands for all of them, and `none` for none."""
    words = tuple(word.lower() for word in to_words(value, what))
    if words == ("none",):
        return ()
    for word in words:
        if word not in ("all", *COMPONENTS):
            raise ConfigurationError(f"{what}: {word!r} is not one of all, {', '.join(COMPONENTS)}")
    return COMPONENTS if "all" in words else words


def to_protocols(value: Any, what: str) -> tuple[str, ...]:
    """Reads versions of TLS. `any`, or nothing, stands for all of them."""
    words = to_words(value, what)
    if not words or [word.lower() for word in words] == [ANY]:
        return PROTOCOLS
    by_name = {protocol.lower(): protocol for protocol in PROTOCOLS}
    for word in words:
        if word.lower() not in by_name:
            raise ConfigurationError(f"{what}: {word!r} is not one of {ANY}, {', '.join(PROTOCOLS)}")
    return tuple(protocol for protocol in PROTOCOLS if protocol.lower() in {word.lower() for word in words})


def to_file(value: Any, what: str) -> str | None:
    """Reads the name of a file. None, or an empty text: there is none."""
    if value is None or value == "":
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or "\0" in path:
        raise ConfigurationError(f"{what}: {value!r} is not the name of a file")
    return os.path.expanduser(path)


@dataclass(kw_only=True)
class SslAttributes(Attributes):
    """The encryption of a process: of a member, a locator, the command line or a client."""

    kind, title = "ssl", "ssl"

    enabled_components: Annotated[
        Collection[str],
        Attribute(
            "what is encrypted: all, or some of cluster, gateway, locator, server",
            read=to_components,
            option="ssl-enabled-components",
            more="`cluster`: members among each other, and commands to members. `locator`: requests to locators, those"
            " of other sites too. `gateway`: senders and receivers. `server`: rows of clients and of Spark. Both ends"
            " have to agree",
        ),
    ] = ()
    certificate: Annotated[
        str | None,
        Attribute(
            "the file with the certificate of this process, and those of authorities between, in PEM",
            read=to_file,
            option="ssl-certificate",
            more="Members and locators need one. It is for servers and, with `ssl-require-authentication`, for clients"
            " too",
        ),
    ] = None
    key: Annotated[
        str | None,
        Attribute(
            "the file with the key of the certificate, in PEM",
            read=to_file,
            option="ssl-key",
            unset="in the file of the certificate",
            more="It has no password. Nobody else can read or write it (0600; 0640 if it belongs to the superuser)",
        ),
    ] = None
    trusted_certificates: Annotated[
        str | None,
        Attribute(
            "the file with the certificates of the authorities that are believed, in PEM",
            read=to_file,
            option="ssl-trusted-certificates",
            more="It is required when a component is encrypted",
        ),
    ] = None
    revoked_certificates: Annotated[
        str | None,
        Attribute(
            "a file with lists of revoked certificates (CRLs) of these authorities, in PEM",
            read=to_file,
            option="ssl-revoked-certificates",
            more="Then every authority in the chain of another process's certificate, the root and each authority"
            " between, needs a list in it that has not ended. What a list has of authorities between counts, too",
        ),
    ] = None
    protocols: Annotated[
        Collection[str],
        Attribute(
            "the versions of TLS: any, or TLSv1.2, TLSv1.3",
            read=to_protocols,
            option="ssl-protocols",
        ),
    ] = PROTOCOLS
    ciphers: Annotated[
        Collection[str],
        Attribute(
            "the ciphers of TLSv1.2, by OpenSSL's names, separated by commas",
            read=to_words,
            option="ssl-ciphers",
            unset="those of Python's `ssl`",
            more="Those of TLSv1.3 cannot be chosen: all of them are good",
        ),
    ] = ()
    require_authentication: Annotated[
        bool,
        Attribute(
            "who connects has to show a certificate, too",
            option="ssl-require-authentication",
        ),
    ] = True
    endpoint_identification_enabled: Annotated[
        bool,
        Attribute(
            "who connects checks that the certificate is of the host that it has connected to",
            option="ssl-endpoint-identification-enabled",
        ),
    ] = True

    def check(self) -> None:
        given = [row for row in table(type(self)) if row.name.endswith(("certificate", "certificates", "key"))]
        if not self.enabled_components:
            for row in given:
                if getattr(self, row.name) is not None:
                    raise ConfigurationError(
                        f"{row.option} has no effect without ssl-enabled-components; name what is to be encrypted"
                        " there (all), or leave it out"
                    )
            return
        if self.trusted_certificates is None:
            raise ConfigurationError(
                f"ssl-enabled-components {', '.join(self.enabled_components)} needs ssl-trusted-certificates: the file"
                " with the certificates of the authorities that are believed"
            )
        if self.key is not None and self.certificate is None:
            raise ConfigurationError("ssl-key has no effect without ssl-certificate; name that file, too")
        if self.ciphers and tuple(self.protocols) == ("TLSv1.3",):
            raise ConfigurationError(
                "ssl-ciphers has no effect with ssl-protocols TLSv1.3, whose ciphers cannot be chosen; leave it out, or"
                " add TLSv1.2"
            )

    def check_listens(self, who: str) -> None:
        """Raises ConfigurationError if who listens has no certificate to show."""
        if self.enabled_components and self.certificate is None:
            raise ConfigurationError(
                f"{who}: ssl-enabled-components {', '.join(self.enabled_components)} needs ssl-certificate: the file"
                " with the certificate of this process"
            )

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are read."""
        named = (self.certificate, self.key, self.trusted_certificates, self.revoked_certificates)
        return tuple(file for file in named if file is not None)


def ssl_of(given: Mapping[str, Any] | None) -> SslAttributes:
    """Returns checked attributes from what a program or a command gives, by the names of the table: `certificate`, or
    `ssl-certificate` as commands have it. None: nothing is encrypted."""
    if given is None:
        return SslAttributes()
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"ssl: {given!r:.120} is no map of options, such as {{'enabled_components': 'all'}}")
    values = {str(name).replace("-", "_").removeprefix("ssl_"): value for name, value in given.items()}
    return SslAttributes.make(**values)


__all__ = ["CLUSTER", "COMPONENTS", "GATEWAY", "LOCATOR", "SERVER", "SslAttributes", "ssl_of"]

"""Makes authorities, certificates and lists of revoked ones for tests, right and wrong ones, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
BOTH = ("server", "client")
_USES = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}
LOCAL = ("localhost", "127.0.0.1")


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def new_key(kind: str = "ec", bits: int = 256) -> Any:
    if kind == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=bits)
    return ec.generate_private_key({256: ec.SECP256R1(), 192: ec.SECP192R1()}[bits])


@dataclass
class Made:
    """A certificate with its key, and the certificates that signed it."""

    certificate: x509.Certificate
    key: Any
    chain: tuple[x509.Certificate, ...] = ()

    def pem(self) -> bytes:
        whole = (self.certificate, *self.chain)
        return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in whole)

    def key_pem(self) -> bytes:
        return bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def write(self, folder: Path, name: str) -> tuple[str, str]:
        """Returns the names of the files with the certificate and with the key."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(self.pem())
        key.touch(0o600)
        key.write_bytes(self.key_pem())
        return str(certificate), str(key)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Authority:
    """Signs certificates. `parent` is the authority that signs this one; None: it signs itself."""

    made: Made

    def __init__(self, name: str = "authority", parent: Authority | None = None) -> None:
        key = new_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(parent.made.certificate.subject if parent else _name(name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() - DAY)
            .not_valid_after(now() + 365 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        signed = builder.sign(parent.made.key if parent else key, hashes.SHA256())
        self.made = Made(signed, key)
        self._chain = (signed,) if parent else ()

    def write(self, folder: Path, name: str = "authority") -> str:
        file = folder / f"{name}.pem"
        file.write_bytes(self.made.certificate.public_bytes(serialization.Encoding.PEM))
        return str(file)

    def certificate(
        self,
        name: str = "member",
        *,
        hosts: Iterable[str] = LOCAL,
        uses: Iterable[str] = BOTH,
        begins: datetime.timedelta = -DAY,
        ends: datetime.timedelta = 300 * DAY,
        key: Any = None,
        with_chain: bool = True,
        signs_itself: bool = False,
    ) -> Made:
        key = key or new_key()
        issuer = _name(name) if signs_itself else self.made.certificate.subject
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() + begins)
            .not_valid_after(now() + ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([_USES[use] for use in uses]), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(h) for h in hosts]), critical=False)
        signed = builder.sign(key if signs_itself else self.made.key, hashes.SHA256())
        return Made(signed, key, self._chain if with_chain else ())

    def revoked(self, *certificates: Made) -> bytes:
        """Returns a list of revoked certificates, in PEM."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.made.certificate.subject)
            .last_update(now() - DAY)
            .next_update(now() + 30 * DAY)
        )
        for each in certificates:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(each.certificate.serial_number)
                .revocation_date(now() - DAY / 2)
                .build()
            )
        return builder.sign(self.made.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def options(folder: Path, authority: Authority, made: Made, name: str = "member", **more: Any) -> dict[str, Any]:
    """Returns the map `ssl` for a process with that certificate, which believes that authority."""
    certificate, key = made.write(folder, name)
    return {
        "enabled_components": "all",
        "certificate": certificate,
        "key": key,
        "trusted_certificates": authority.write(folder, f"{name}-trusts"),
        **more,
    }


def new_options(folder: Path, hosts: Iterable[str] = LOCAL) -> dict[str, Any]:
    """Returns the map `ssl` for all processes that run on these hosts: one certificate of a new authority."""
    authority = Authority()
    return options(folder, authority, authority.certificate(hosts=hosts))


def contexts(
    given: Mapping[str, Any], version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns what shakes hands at the end that connects and at the other one, with the files of a map `ssl`. Both show
    a certificate, and speak this version alone."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for each in made:
        each.verify_mode = ssl.CERT_REQUIRED
        each.minimum_version = each.maximum_version = version
        each.load_verify_locations(given["trusted_certificates"])
        each.load_cert_chain(given["certificate"], given["key"])
    return made

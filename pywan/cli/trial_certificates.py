"""Owns certificates for trying encryption out: an authority, and a certificate with its key for each site."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pywan.base.files import make_folder, write_whole
from pywan.base.names import check_name, is_host
from pywan.errors import ConfigurationError, DiskError

AUTHORITY = "authority"
ALWAYS = ("localhost", "127.0.0.1", "::1")  # Hosts that are in each certificate.
DAYS = 365
_EXTRA = "the command needs the package cryptography: pip install 'pywan[certificates]'"
_BEGINS_EARLIER = datetime.timedelta(hours=1)  # Clocks of other machines may be behind.


def make_certificates(
    folder: Path, sites: Sequence[str], hosts: Sequence[str], *, days: int = DAYS, force: bool = False
) -> dict[str, tuple[Path, Path]]:
    """Writes all files into the folder. Returns the files with certificate and key, by site and `authority`.

    ConfigurationError if a name cannot be used, a file is there already, or the extra is not installed. Nothing was
    written, then.
    """
    for site in sites:
        check_name(site, "certificates make: --site")
        if site == AUTHORITY:
            raise ConfigurationError(
                f"certificates make: --site {AUTHORITY} is the name of the authority; take another"
            )
    for host in hosts:
        if not is_host(host):
            raise ConfigurationError(f"certificates make: --hosts: {host!r} is not a host name or address")
    files = {name: (folder / f"{name}.pem", folder / f"{name}.key") for name in (AUTHORITY, *sites)}
    there = [file for pair in files.values() for file in pair if file.exists()]
    if there and not force:
        raise ConfigurationError(
            f"certificates make: {there[0]} is there already; say another --dir, or replace what is there with --force"
        )
    made = _make(sites, [*dict.fromkeys((*hosts, *ALWAYS))], days)
    try:
        make_folder(folder, 0o700)
        for name, (certificate, key) in made.items():
            write_whole(files[name][0], certificate)
            write_whole(files[name][1], key)
    except OSError as error:
        raise DiskError(
            f"certificates make: {error.filename or folder} cannot be written: {error.strerror}; say another --dir"
        ) from None
    return files


def _make(sites: Sequence[str], hosts: Sequence[str], days: int) -> dict[str, tuple[bytes, bytes]]:
    """Returns certificate and key of the authority and of each site, in PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError:
        raise ConfigurationError(f"certificates make: {_EXTRA}") from None
    now = datetime.datetime.now(datetime.UTC)

    def name_of(text: str) -> Any:
        return x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "pywan"), x509.NameAttribute(NameOID.COMMON_NAME, text)]
        )

    def builder(subject: str, key: Any) -> Any:
        return (
            x509.CertificateBuilder()
            .subject_name(name_of(subject))
            .issuer_name(name_of("authority for trying out"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEGINS_EARLIER)
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )

    def use(**true: bool) -> Any:
        names = (
            "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
            "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
        )  # fmt: skip
        return x509.KeyUsage(**{name: true.get(name, False) for name in names})

    def pem(certificate: Any, key: Any) -> tuple[bytes, bytes]:
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM), secret

    def address(host: str) -> Any:
        try:
            return x509.IPAddress(ipaddress.ip_address(host.partition("%")[0]))
        except ValueError:
            return x509.DNSName(host)

    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = (
        builder("authority for trying out", authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(use(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    made = {AUTHORITY: pem(authority, authority_key)}
    for site in sites:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            builder(site, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(use(digital_signature=True), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([address(host) for host in hosts]), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        made[site] = pem(certificate, key)
    return made


__all__ = ["ALWAYS", "AUTHORITY", "DAYS", "make_certificates"]

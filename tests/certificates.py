"""Makes certificate authorities, certificates and their files, for tests of encrypted connections."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key, as files."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    certificate_file: Path  # PEM.
    key_file: Path  # PEM, without a password.


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(directory: Path, name: str, made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Certificate:
    files = directory / f"{name}.pem", directory / f"{name}.key"
    files[0].write_bytes(made.public_bytes(Encoding.PEM))
    files[1].touch(mode=0o600)
    files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return Certificate(made, key, *files)


class Authority:
    """An authority, whose certificate is in the file `file`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        self.own = _write(directory, name, made, key)
        self.file = self.own.certificate_file

    def certificate(
        self,
        name: str,
        *,
        hosts: Sequence[str] = HOSTS,
        client: bool = True,
        server: bool = True,
        not_before: datetime.datetime | None = None,
        not_after: datetime.datetime | None = None,
    ) -> Certificate:
        """Makes a certificate that this authority has signed.

        Args:
            name: Its common name, and the name of its files.
            hosts: The names and addresses that it is for.
            client: Whether it is for the end that connects.
            server: Whether it is for the end that is connected to.
            not_before: Since when it is valid. None: since yesterday.
            not_after: Until when it is valid. None: for ten days.
        """
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH] * client + [ExtendedKeyUsageOID.SERVER_AUTH] * server
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self.own.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_before or now - DAY)
            .not_valid_after(not_after or now + 10 * DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.own.key.public_key()), critical=False
            )
        )
        if uses:
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False
            )
        return _write(self._directory, name, builder.sign(self.own.key, hashes.SHA256()), key)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def authority(directory: Path, name: str = "authority") -> Authority:
    """Makes an authority whose files, and those of its certificates, are in this directory."""
    return Authority(directory, name)


def contexts(
    authority: Authority, mine: Certificate, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of the end that connects and of the other one. Each shows this certificate, believes what the
    authority has signed, and speaks this version alone."""
    return contexts_of_files(authority.file, mine.certificate_file, mine.key_file, version)


def contexts_of_files(
    authority: Path, certificate: Path, key: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """As `contexts`, from their files."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for each in made:
        each.verify_mode = ssl.CERT_REQUIRED
        each.minimum_version = each.maximum_version = version
        each.load_verify_locations(authority)
        each.load_cert_chain(certificate, key)
    return made

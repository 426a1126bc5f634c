"""Owns how the files of a process's encryption become what Python's `ssl` shakes hands by, and refuses by name those
that cannot work."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pywan.base.files import FileError, read_secret
from pywan.config.ssl_attributes import SslAttributes
from pywan.errors import ConfigurationError
from pywan.transport.tls_words import in_words

MAX_FILE_BYTES = 16 << 20  # A file of certificates is smaller. A list of revoked ones may be large.
WARN_DAYS = 14  # What ends within so many days is said.
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which `ssl` does not name.
_WRONG_USE = 26  # OpenSSL's X509_V_ERR_INVALID_PURPOSE.
_SECURITY_LEVEL = "@SECLEVEL=2"  # RSA from 2048 bits, EC from 224, no SHA-1.
_DAY_S = 86_400


@dataclass(frozen=True)
class Ending:
    """A certificate, and when it ends, in seconds since 1970."""

    what: str
    at_s: float

    def said(self, now_s: float) -> str:
        """What there is to say about it. "": it does not end soon."""
        left_s = self.at_s - now_s
        day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.at_s))
        if left_s <= 0:
            return f"{self.what} has ended on {day}"
        if left_s > WARN_DAYS * _DAY_S:
            return ""
        days = int(left_s // _DAY_S)
        left = f"{days} days" if days > 1 else f"{int(left_s // 3600)} hours"
        return f"{self.what} ends in {left}, on {day}"


@dataclass(frozen=True)
class Contexts:
    """What shakes hands: `client` for connections that this process makes, `server` for those that come."""

    client: ssl.SSLContext
    server: ssl.SSLContext | None  # None: this process has no certificate to show.
    endings: tuple[Ending, ...]
    own: bytes = b""  # The certificate that `server` shows, as DER.


@dataclass(frozen=True)
class _Read:
    """What a file of `SslAttributes` held when it was read.

    Attributes:
        what: The option and the file, for errors.
        path: A name under which OpenSSL reads these bytes, as long as `_reading` runs.
    """

    what: str
    path: str


_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_FILES = ("certificate", "key", "trusted_certificates", "revoked_certificates")


def make_contexts(given: SslAttributes) -> Contexts:
    """Reads all files, each once. ConfigurationError names the file, and what is wrong with it."""
    with _reading(given) as files:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = given.endpoint_identification_enabled
        _configure(client, given, files)
        trusted = files["trusted_certificates"].what
        endings = [Ending(f"{trusted}: {_subject(each)}", _time_of(each, "notAfter")) for each in client.get_ca_certs()]
        server, own = None, b""
        if given.certificate is not None:
            own = _shown_of(files["certificate"])
            _load_chain(client, files)
            end_s = _check_own(given, files)
            server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.num_tickets = 0  # Nobody comes back to a session.
            server.verify_mode = ssl.CERT_REQUIRED if given.require_authentication else ssl.CERT_NONE
            _configure(server, given, files)
            _load_chain(server, files)
            endings.insert(0, Ending(files["certificate"].what, end_s))
        return Contexts(client, server, tuple(endings), own)


@contextlib.contextmanager
def _reading(given: SslAttributes) -> Iterator[dict[str, _Read]]:
    """Reads the files and checks who may read and write them. Gives what was read, by the names of the attributes.

    OpenSSL takes files by their names alone. It gets names of memory that holds the bytes which were checked: a file
    that is replaced after the check, for example by a pipe, is not opened again.
    """
    has_key = "key" if given.key is not None else "certificate"
    with contextlib.ExitStack() as stack:
        files = {}
        for name in _FILES:
            file = getattr(given, name)
            if file is None:
                continue
            what = f"ssl-{name.replace('_', '-')} {file}"
            try:
                data = read_secret(file, MAX_FILE_BYTES, is_public=name != has_key)
            except FileError as error:
                raise ConfigurationError(f"{what} {error}") from None
            memory = stack.enter_context(open(os.memfd_create("pywan-tls", os.MFD_CLOEXEC), "wb", buffering=0))
            memory.write(data)
            files[name] = _Read(what, f"/proc/self/fd/{memory.fileno()}")
        yield files


def _configure(context: ssl.SSLContext, given: SslAttributes, files: dict[str, _Read]) -> None:
    """Sets what both kinds of contexts have in common."""
    context.minimum_version = _VERSIONS[min(given.protocols)]
    context.maximum_version = _VERSIONS[max(given.protocols)]
    if given.ciphers:
        for cipher in given.ciphers:
            _check_cipher(cipher)
        context.set_ciphers(":".join((*given.ciphers, _SECURITY_LEVEL)))
    trusted, revoked = files["trusted_certificates"], files.get("revoked_certificates")
    try:
        context.load_verify_locations(trusted.path)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"{trusted.what}: {_not_pem(error)}; it has to hold certificates of authorities in PEM"
        ) from None
    if not context.cert_store_stats()["x509"]:
        raise ConfigurationError(f"{trusted.what}: there is no certificate in it")
    if revoked is not None:
        try:
            context.load_verify_locations(revoked.path)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"{revoked.what}: {_not_pem(error)}; it has to hold lists of revoked certificates (X509 CRL) in PEM"
            ) from None
        if not context.cert_store_stats()["crl"]:
            raise ConfigurationError(f"{revoked.what}: there is no list of revoked certificates (X509 CRL) in it")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN  # An authority between may be revoked, too.


def _check_cipher(cipher: str) -> None:
    if cipher.startswith(("TLS_AES_", "TLS_CHACHA20_")):
        raise ConfigurationError(f"ssl-ciphers: {cipher} is of TLSv1.3, whose ciphers cannot be chosen; leave it out")
    try:
        if not cipher.replace("-", "").replace("_", "").isalnum():
            raise ssl.SSLError
        probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        probe.set_ciphers(f"{cipher}:{_SECURITY_LEVEL}")
        if cipher not in {each["name"] for each in probe.get_ciphers()}:
            raise ssl.SSLError
    except ssl.SSLError:
        raise ConfigurationError(
            f"ssl-ciphers: there is no cipher {cipher!r} here, or it is too weak; `openssl ciphers -tls1_2 -s` lists"
            " their names"
        ) from None


def _not_pem(error: Exception) -> str:
    reason = getattr(error, "reason", None) or ""
    return (
        "it is no PEM file"
        if isinstance(error, ssl.SSLError) and reason in ("", "NO_CERTIFICATE_OR_CRL_FOUND", "NO_START_LINE")
        else in_words(error)
    )


def _refuse_password() -> str:
    raise ConfigurationError("its key has a password, which nobody could give; take one without")


def _load_chain(context: ssl.SSLContext, files: dict[str, _Read]) -> None:
    """Loads the certificate and the key of this process."""
    certificate, key = files["certificate"], files.get("key")
    where = certificate.what + (f", {key.what}" if key is not None else "")
    try:
        context.load_cert_chain(certificate.path, key.path if key is not None else None, password=_refuse_password)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    except ssl.SSLError as error:
        reason = error.reason or ""
        words = {
            "KEY_VALUES_MISMATCH": "the key does not belong to the certificate; name the one that it was made with",
            "EE_KEY_TOO_SMALL": "the key is weak; take RSA of 2048 bits or more, or EC of 224 or more",
            "CA_MD_TOO_WEAK": "the signature is weak (SHA-1 or older); take a certificate with SHA-256",
        }.get(reason, "there is no certificate with a key in it; both have to be in PEM")
        raise ConfigurationError(f"{where}: {words}") from None
    except OSError as error:
        raise ConfigurationError(f"{where}: {error.strerror or error}") from None


def _check_own(given: SslAttributes, files: dict[str, _Read]) -> float:
    """Has the certificate of this process shake hands with itself, and returns when it ends.

    So OpenSSL itself says what it thinks of it. Who signed it is for others to judge.
    """
    what = files["certificate"].what
    shown = _shaken(files, "server", what)
    if given.require_authentication:
        _shaken(files, "client", what)
    now, begins, ends = time.time(), _time_of(shown, "notBefore"), _time_of(shown, "notAfter")
    if ends <= now:
        raise ConfigurationError(f"{what}: it has expired, on {shown['notAfter']}; renew it")
    if begins > now:
        raise ConfigurationError(f"{what}: it is not valid yet: it begins on {shown['notBefore']}; look at the clock")
    return ends


def _shaken(files: dict[str, _Read], use: str, what: str) -> dict[str, Any]:
    """Returns what the other end of a handshake sees of the certificate when it is used as a server's or a
    client's."""
    shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if use == "server" else ssl.PROTOCOL_TLS_CLIENT)
    looks = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if use == "server" else ssl.PROTOCOL_TLS_SERVER)
    for context in (shows, looks):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _load_chain(shows, files)
    if use == "client":
        _load_chain(looks, files)  # A server needs one, too.
    looks.verify_mode = ssl.CERT_REQUIRED
    looks.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    looks.verify_flags = ssl.VerifyFlags(looks.verify_flags | _NO_CHECK_TIME)
    looks.load_verify_locations(files["certificate"].path)
    server, client = (shows, looks) if use == "server" else (looks, shows)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="this"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                if error.verify_code == _WRONG_USE:
                    raise ConfigurationError(
                        f"{what}: it is not for the use as a {use}; take one whose extended key usage has serverAuth"
                        " and clientAuth"
                    ) from None
                raise ConfigurationError(f"{what}: {in_words(error).partition(': ')[2]}") from None
            except ssl.SSLError as error:
                raise ConfigurationError(f"{what}: {in_words(error)}") from None
    seen = (ends[0] if use == "server" else ends[1]).getpeercert()
    assert seen is not None
    return dict(seen)


def _shown_of(file: _Read) -> bytes:
    """Returns the first certificate in a file, which is the one that is shown, as DER. Empty: there is none, which is
    said elsewhere."""
    with open(file.path, encoding="ascii", errors="replace") as text:
        found = _CERTIFICATE.search(text.read())
    return ssl.PEM_cert_to_DER_cert(found[0]) if found else b""


def _time_of(certificate: Any, field: str) -> float:
    return float(ssl.cert_time_to_seconds(certificate[field]))


def _subject(certificate: Any) -> str:
    """Returns the name of who a certificate is for."""
    names = {key: value for part in certificate.get("subject", ()) for key, value in part}
    return str(names.get("commonName") or names.get("organizationName") or "without a name")


__all__ = ["WARN_DAYS", "Contexts", "Ending", "make_contexts"]

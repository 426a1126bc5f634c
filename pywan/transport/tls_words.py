"""Owns the words for what goes wrong with encryption: which end refuses, why, and what helps."""

from __future__ import annotations

import ssl

_SPEAKS_PLAIN = (
    "the other end does not speak TLS there; name the component in ssl-enabled-components at both ends, or at none"
)

# What this end finds wrong with the certificate of the other one, by the number that OpenSSL gives.
_NOT_BELIEVED = {
    3: "an authority of its chain has no list of revoked certificates in ssl-revoked-certificates; add it",
    9: "it is not valid yet; look at the clocks of both ends",
    10: "it has expired; give that end a new one",
    12: "the list of revoked certificates of an authority of its chain has ended; renew ssl-revoked-certificates",
    18: "it is self-signed, and not in ssl-trusted-certificates",
    19: "its authority is unknown: it is not in ssl-trusted-certificates",
    20: "its authority is unknown: it is not in ssl-trusted-certificates, or a certificate between is missing",
    21: "its authority is unknown: it is not in ssl-trusted-certificates, or a certificate between is missing",
    23: "it was revoked, or an authority between was; give that end a new one",
    24: "what signed it is no authority",
    26: "it is not for this use (server or client); give that end one that is",
    62: "the host name is not in it; put it among its names, or connect by one of those",
    64: "the address is not in it; put it among its names, or connect by one of those",
    66: "its key is weak; give that end one with RSA of 2048 bits or more, or EC of 224 or more",
    67: "the key of its authority is weak; that authority needs one with RSA of 2048 bits or more",
    68: "its signature is weak (SHA-1 or older); give that end one with SHA-256",
    79: "what signed it is no authority",  # As 24, since OpenSSL 3.
}

# What the other end tells, by the end of the name that OpenSSL gives.
_ALERTS = {
    "CERTIFICATE_EXPIRED": "the certificate of this end has expired there",
    "UNKNOWN_CA": "it does not know the authority of the certificate of this end",
    "CERTIFICATE_REVOKED": "the certificate of this end was revoked there",
    "UNSUPPORTED_CERTIFICATE": "the certificate of this end is not for this use (server or client)",
    "BAD_CERTIFICATE": "the certificate of this end is not believed there: not valid yet, the wrong host, or damaged",
    "CERTIFICATE_UNKNOWN": "the certificate of this end is not believed there",
    "CERTIFICATE_REQUIRED": "it wants a certificate of this end; name one in ssl-certificate",
    "PROTOCOL_VERSION": "there is no version of TLS that both ends have in ssl-protocols",
    "HANDSHAKE_FAILURE": "there is no cipher that both ends have in ssl-ciphers, or it wants a certificate of this end",
    "INSUFFICIENT_SECURITY": "the ciphers or keys of this end are too weak there",
    "ACCESS_DENIED": "it does not let this end in",
    "DECRYPT_ERROR": "a signature of this end is wrong there",
    "INTERNAL_ERROR": "it has an internal error",
    "NO_APPLICATION_PROTOCOL": "it speaks another protocol over TLS",
}

# What this end finds wrong otherwise.
_OWN = {
    "WRONG_VERSION_NUMBER": _SPEAKS_PLAIN,
    "HTTP_REQUEST": "the other end sends an HTTP request without TLS",
    "HTTPS_PROXY_REQUEST": "the other end sends a request for a proxy",
    "UNSUPPORTED_PROTOCOL": "there is no version of TLS that both ends have in ssl-protocols",
    "VERSION_TOO_LOW": "there is no version of TLS that both ends have in ssl-protocols",
    "NO_SHARED_CIPHER": "there is no cipher that both ends have in ssl-ciphers",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "the key of this end does not go with what the other end knows",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other end shows no certificate; name one in its ssl-certificate",
    "UNEXPECTED_MESSAGE": "the other end does not speak TLS properly",
    "EE_KEY_TOO_SMALL": _NOT_BELIEVED[66],
    "CA_KEY_TOO_SMALL": _NOT_BELIEVED[67],
    "CA_MD_TOO_WEAK": _NOT_BELIEVED[68],
    "DH_KEY_TOO_SMALL": "the key that the other end offers is weak",
}


def in_words(error: BaseException) -> str:
    """Returns why a connection broke or could not be made."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = _NOT_BELIEVED.get(error.verify_code, f"{error.verify_message or error}")
        return f"the certificate of the other end is refused: {why}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        _, is_alert, alert = reason.partition("ALERT_")
        if is_alert:
            return f"refused by the other end: {_ALERTS.get(alert, alert.lower().replace('_', ' '))}"
        own = _OWN.get(reason)
        return f"refused: {own}" if own else f"TLS failed: {reason.lower().replace('_', ' ') or error}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


def handshake_in_words(error: BaseException) -> str:
    """Returns why a handshake failed."""
    if isinstance(error, TimeoutError):
        return "the TLS handshake was not done in time"
    if isinstance(error, ConnectionError):
        return (
            f"the other end closed the connection during the TLS handshake: it may not speak TLS there, or does not"
            f" want this end; its log says more, and {_SPEAKS_PLAIN.partition('; ')[2]}"
        )
    return in_words(error)


__all__ = ["handshake_in_words", "in_words"]

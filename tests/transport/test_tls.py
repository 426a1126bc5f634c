"""Connections that are encrypted: which options and files are refused, who is refused and why, and what both ends say
of it."""

from __future__ import annotations

import ast
import contextlib
import datetime
import logging
import os
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

import pywan
from pywan.errors import ConfigurationError, ConnectivityError
from pywan.testing.waiting import eventually
from pywan.transport import contexts, links
from pywan.transport.control import ControlClient, ControlServer, call_once
from pywan.transport.links import LOCATOR_PORT, MEMBER_PORT, Gate, Links
from support.made_certificates import DAY, Authority, Made, new_key, now, options


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture
def good(tmp_path, authority):
    return options(tmp_path, authority, authority.certificate(), "good")


@contextlib.contextmanager
def serving(ssl_options, protocols=MEMBER_PORT, **more):
    """A control port of a process with those options."""
    gate = Gate(Links(ssl_options, listener="member m"), protocols)
    with ControlServer(
        "127.0.0.1", 0, lambda request, peer: {"heard": request["op"]}, name="m", gate=gate, **more
    ) as it:
        yield it.start()


def asked(ssl_options, server):
    return call_once((server.host, server.port), "ping", way=Links(ssl_options).cluster)


# What cannot work is refused when it is created


def _swapped(folder, authority, good):
    return {**good, "key": authority.certificate().write(folder, "other")[1]}


def _with_password(folder, authority, good):
    from cryptography.hazmat.primitives import serialization

    made = authority.certificate()
    certificate, key = made.write(folder, "locked")
    (folder / "locked.key").write_bytes(
        made.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return {**good, "certificate": certificate, "key": key}


def _own(**given):
    return lambda folder, authority, good: {
        **good,
        **options(folder, authority, authority.certificate(**given), "own"),
    }


def _text(name):
    def change(folder, authority, good):
        (folder / "text").write_text("no certificate")
        return {**good, name: str(folder / "text")}

    return change


def _revoked(folder, *authorities):
    """Returns the name of a file with a list of each authority, which revokes nothing."""
    file = folder / "revoked.pem"
    file.write_bytes(b"".join(each.revoked() for each in authorities))
    return str(file)


def _with(**given):
    return lambda folder, authority, good: {**good, **given}


REFUSED = {
    "a file that is not there": (_with(certificate="/nowhere/a.pem"), r"ssl-certificate /nowhere/a\.pem.*No such file"),
    "a key that is not there": (_with(key="/nowhere/a.key"), r"ssl-key /nowhere/a\.key cannot be read"),
    "a folder": (
        _with(trusted_certificates="/tmp"),
        r"ssl-trusted-certificates /tmp is not a regular file",
    ),
    "no PEM": (_text("trusted_certificates"), "it has to hold certificates of authorities in PEM"),
    "no list": (_text("revoked_certificates"), "it has to hold lists of revoked certificates"),
    "a certificate that is none": (_text("certificate"), "there is no certificate with a key in it"),
    "the wrong key": (_swapped, "the key does not belong to the certificate"),
    "a key with a password": (_with_password, "its key has a password"),
    "expired": (_own(begins=-9 * DAY, ends=-DAY), "it has expired, on .*; renew it"),
    "not yet valid": (_own(begins=DAY), "it is not valid yet: it begins on"),
    "for servers only": (_own(uses=["server"]), "not for the use as a client"),
    "for clients only": (_own(uses=["client"]), "not for the use as a server"),
    "weak RSA": (_own(key=new_key("rsa", 1024)), "the key is weak; take RSA of 2048 bits"),
    "weak EC": (_own(key=new_key("ec", 192)), "the key is weak"),
    "an unknown protocol": (_with(protocols="SSLv3"), "'SSLv3' is not one of any, TLSv1.2, TLSv1.3"),
    "an unknown cipher": (_with(ciphers="ROT13"), "there is no cipher 'ROT13' here"),
    "a list of ciphers": (_with(ciphers="ALL:eNULL"), "there is no cipher 'ALL:eNULL' here"),
    "a cipher of TLSv1.3": (_with(ciphers="TLS_AES_256_GCM_SHA384"), "is of TLSv1.3"),
    "ciphers without effect": (
        _with(ciphers="ECDHE-ECDSA-AES256-GCM-SHA384", protocols="TLSv1.3"),
        "ssl-ciphers has no effect",
    ),
    "an unknown component": (_with(enabled_components="all,jmx"), "'jmx' is not one of all, cluster, gateway"),
    "no authorities": (_with(trusted_certificates=None), "needs ssl-trusted-certificates"),
    "no certificate": (_with(certificate=None, key=None), "needs ssl-certificate"),
    "a key alone": (_with(certificate=None), "ssl-key has no effect without ssl-certificate"),
    "nothing that is encrypted": (_with(enabled_components=""), "has no effect without ssl-enabled-components"),
    "an unknown option": (_with(keystore="a.jks"), "no attribute 'keystore'"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_work_is_refused_by_name(kind, tmp_path, authority, good):
    change, words = REFUSED[kind]
    given = change(tmp_path, authority, good)
    with pytest.raises(ConfigurationError, match=words):
        pywan.Locator("loc", distributed_system_id=1, port=0, ssl=given)
    with pytest.raises(ConfigurationError, match=words):
        pywan.Cache("m", locators="127.0.0.1[1]", ssl=given)


def test_names_may_be_those_of_commands(good):
    named = {f"ssl-{name.replace('_', '-')}": value for name, value in good.items()}
    assert Links(named).attributes == Links(good).attributes


@pytest.mark.parametrize(
    "name, mode, words",
    [
        ("key", 0o604, "can be read or written by others .*chmod 600"),
        ("certificate", 0o664, "can be written by others .*chmod 644"),
        ("trusted_certificates", 0o666, "can be written by others .*chmod 644"),
        ("revoked_certificates", 0o646, "can be written by others .*chmod 644"),
    ],
)
def test_a_file_that_others_can_change_or_a_key_that_they_can_read_is_refused(good, authority, name, mode, words):
    folder = Path(good["key"]).parent
    good["revoked_certificates"] = _revoked(folder, authority)
    os.chmod(good[name], 0o644 if name != "key" else 0o600)
    links = Links(good)
    os.chmod(good[name], mode)
    with pytest.raises(ConfigurationError, match=f"ssl-{name.replace('_', '-')} {good[name]} {words} {good[name]}"):
        Links(good)
    with pytest.raises(ConfigurationError, match=words):
        links.reload()


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give a file away")
@pytest.mark.parametrize("name", ["key", "certificate", "trusted_certificates"])
def test_a_file_of_another_user_is_refused(good, name):
    os.chown(good[name], 65534, 65534)
    with pytest.raises(ConfigurationError, match=r"belongs to user 65534.* chown 0 "):
        Links(good)


@pytest.mark.parametrize("name", ["key", "certificate", "trusted_certificates", "revoked_certificates"])
def test_no_file_of_tls_can_hold_up_the_process(good, authority, name):
    good["revoked_certificates"] = _revoked(Path(good["key"]).parent, authority)
    links = Links(good)
    before = links.contexts()
    os.unlink(good[name])
    os.mkfifo(good[name], 0o600)
    with pytest.raises(ConfigurationError, match=f"{good[name]} is not a regular file"):
        links.reload()
    assert links.contexts() is before


# Both ends


def test_requests_over_tls(good):
    with serving(good) as server, ControlClient(("127.0.0.1", server.port), way=Links(good).cluster) as client:
        for _ in range(3):  # One connection.
            assert client.call("a question", more="x" * 300_000)["heard"] == "a question"


def test_a_server_that_restarts_is_asked_again(good):
    with serving(good) as server:
        client = ControlClient(("127.0.0.1", server.port), way=Links(good).cluster)
        client.call("one")
        port = server.port
    gate = Gate(Links(good, listener="m"), MEMBER_PORT)
    with ControlServer("127.0.0.1", port, lambda request, peer: {"ok": True}, name="m", gate=gate) as again, client:
        again.start()
        client.call("two")


def test_who_speaks_plainly_is_told_and_logged_in_one_line(good, caplog):
    with serving(good) as server:
        with pytest.raises(ConnectivityError, match="this port speaks TLS only"):
            asked(None, server)
        eventually(lambda: "it does not speak TLS, and this port demands it" in caplog.text)
    assert len([each for each in caplog.records if each.name == "pywan.control"]) == 1


def test_tls_to_a_port_that_speaks_none(good, caplog):
    with serving(None) as server:
        with pytest.raises(ConnectivityError, match=r"it may not speak TLS there.*ssl-enabled-components"):
            asked(good, server)
        eventually(lambda: "look like a TLS hello; this port does not speak TLS" in caplog.text)


@pytest.mark.parametrize(
    "enabled, protocols, speaks",
    [
        ("cluster", MEMBER_PORT, True),
        ("server", MEMBER_PORT, False),
        ("locator", LOCATOR_PORT, True),
        ("cluster", LOCATOR_PORT, False),
    ],
)
def test_each_component_is_for_itself(good, enabled, protocols, speaks):
    with serving({**good, "enabled_components": enabled}, protocols) as server:
        if speaks:
            with pytest.raises(ConnectivityError, match="speaks TLS only"):
                asked(None, server)
        else:
            assert asked(None, server)["heard"] == "ping"


def test_without_mutual_authentication_a_client_needs_no_certificate(good):
    with serving({**good, "require_authentication": False}) as server:
        trusts = {"enabled_components": "all", "trusted_certificates": good["trusted_certificates"]}
        assert asked(trusts, server)["heard"] == "ping"


CIPHERS = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"


@pytest.mark.parametrize(
    "here, there, agree",
    [
        ({"protocols": "TLSv1.2"}, {"protocols": "TLSv1.2"}, True),
        ({"protocols": "TLSv1.3"}, {"protocols": "any"}, True),
        ({"protocols": "TLSv1.2"}, {"protocols": "TLSv1.3"}, False),
        ({"protocols": "TLSv1.3"}, {"protocols": "TLSv1.2"}, False),
        ({"protocols": "TLSv1.2", "ciphers": CIPHERS[0]}, {"ciphers": ",".join(CIPHERS)}, True),
        ({"protocols": "TLSv1.2", "ciphers": CIPHERS[0]}, {"ciphers": CIPHERS[1]}, False),
    ],
)
def test_protocols_and_ciphers_have_to_agree(good, here, there, agree, caplog):
    with serving({**good, **there}) as server:
        if agree:
            assert asked({**good, **here}, server)["heard"] == "ping"
            return
        common = "cipher that both ends have" if "ciphers" in here else "version of TLS that both ends have"
        with pytest.raises(ConnectivityError, match=f"refused by the other end.*{common}"):
            asked({**good, **here}, server)
        eventually(lambda: f"refused: there is no {common}" in caplog.text)


def test_host_names_are_checked_unless_told_otherwise(tmp_path, authority, good):
    named = options(tmp_path, authority, authority.certificate(hosts=["elsewhere.example"]), "named")
    with serving(named) as server:
        with pytest.raises(
            ConnectivityError, match=r"certificate of the other end is refused: the address is not in it"
        ):
            asked(good, server)
        assert asked({**good, "endpoint_identification_enabled": False}, server)["heard"] == "ping"


# Twelve kinds of wrong certificates


def _other(authority):
    return Authority("another").certificate()


def _cut(authority):
    return Authority("between", authority).certificate(with_chain=False)


def _by_a_leaf(authority):
    """Signed by a certificate that is no authority's."""
    leaf = authority.certificate("leaf")
    fake = Authority("fake")
    fake.made, fake._chain = leaf, (leaf.certificate,)
    return fake.certificate()


WRONG = {
    "another authority": (_other, "its authority is unknown"),
    "expired": (lambda a: a.certificate(begins=-9 * DAY, ends=-DAY), "it has expired"),
    "not yet valid": (lambda a: a.certificate(begins=DAY), "it is not valid yet"),
    "self-signed": (lambda a: a.certificate(signs_itself=True), "it is self-signed"),
    "a chain that is cut": (_cut, "its authority is unknown"),
    "a chain over a leaf": (_by_a_leaf, "what signed it is no authority"),
    "a weak RSA key": (lambda a: a.certificate(key=new_key("rsa", 1024)), "its key is weak"),
    "revoked": (lambda a: a.certificate("revoked"), "it was revoked, or an authority between was"),
}
OF_CLIENTS = {
    **WRONG,
    "a server's as a client's": (lambda a: a.certificate(uses=["server"]), "it is not for this use"),
    "none": (None, "the other end shows no certificate"),
}
OF_SERVERS = {
    **WRONG,
    "a client's as a server's": (lambda a: a.certificate(uses=["client"]), "it is not for this use"),
    "another host's": (lambda a: a.certificate(hosts=["elsewhere.example"]), "the address is not in it"),
}


def lax(purpose, made: Made | None, folder) -> ssl.SSLContext:
    """What somebody has who does not look at certificates, and shows a wrong one."""
    context = ssl.SSLContext(purpose)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if made is not None:
        context.load_cert_chain(*made.write(folder, "wrong"))
    return context


def with_revoked(folder, authority, good, made):
    (folder / "revoked.pem").write_bytes(authority.revoked(made))
    return {**good, "revoked_certificates": str(folder / "revoked.pem")}


@pytest.mark.parametrize("kind", OF_CLIENTS)
def test_a_wrong_client_is_refused_by_name(kind, tmp_path, authority, good, caplog):
    make, words = OF_CLIENTS[kind]
    made = make(authority) if make is not None else None
    given = with_revoked(tmp_path, authority, good, made) if kind == "revoked" else good
    refuses_client(given, made, words, tmp_path, caplog, given if kind != "revoked" else good)


def refuses_client(given, made, words, folder, caplog, others):
    context = lax(ssl.PROTOCOL_TLS_CLIENT, made, folder)
    with serving(given) as server:
        got = b""
        with (
            socket.create_connection(("127.0.0.1", server.port), 5) as sock,
            contextlib.suppress(ssl.SSLError, OSError),
            context.wrap_socket(sock, server_hostname="localhost") as secured,
        ):
            secured.sendall(b"PWC1" + bytes(60))
            got = secured.recv(1000)
        assert got == b""
        eventually(lambda: words in caplog.text)
        assert others is None or asked(others, server)["heard"] == "ping"


@pytest.mark.parametrize(
    "lists, words",
    [
        ("between revoked", "it was revoked, or an authority between was"),
        ("no list between", "an authority of its chain has no list of revoked certificates"),
        ("no list of the root", "an authority of its chain has no list of revoked certificates"),
        ("all", ""),
    ],
)
def test_the_whole_chain_is_looked_up_in_the_lists(tmp_path, authority, good, caplog, lists, words):
    between = Authority("between", authority)
    made = between.certificate()
    of_root = authority.revoked(*([between.made] if lists == "between revoked" else []))
    file = tmp_path / "lists.pem"
    file.write_bytes((of_root if lists != "no list of the root" else b"")
                     + (between.revoked() if lists != "no list between" else b""))  # fmt: skip
    given = {**good, "revoked_certificates": str(file)}
    shows = options(tmp_path, authority, made, "shows")
    # As a client, and as a server.
    with serving(given) as server, serving(shows) as other:
        if words:
            with pytest.raises(ConnectivityError, match=words):
                asked(given, other)
            refuses_client(given, made, words, tmp_path, caplog, None)
        else:
            assert asked(shows, server)["heard"] == asked(given, other)["heard"] == "ping"


@pytest.mark.parametrize("kind", OF_SERVERS)
def test_a_wrong_server_is_refused_by_name(kind, tmp_path, authority, good):
    make, words = OF_SERVERS[kind]
    made = make(authority)
    given = with_revoked(tmp_path, authority, good, made) if kind == "revoked" else good
    context = lax(ssl.PROTOCOL_TLS_SERVER, made, tmp_path)
    got: list[bytes] = []

    def serve() -> None:
        sock, _ = listener.accept()
        with sock, contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as secured:
            got.append(secured.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConnectivityError, match=f"the certificate of the other end is refused: {words}"):
            call_once(listener.getsockname()[:2], "secret", way=Links(given).cluster)
        thread.join(10)
    assert not any(got), "bytes left before the server was known"


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    "kind, words",
    [
        ("another authority", "it does not know the authority of the certificate of this end"),
        ("revoked", "the certificate of this end was revoked there"),
        ("none", "it wants a certificate of this end|no cipher that both ends have.*or it wants a certificate"),
    ],
)
def test_who_is_refused_is_told_why(kind, words, protocol, tmp_path, authority, good):
    make = OF_CLIENTS[kind][0]
    given = good
    wrong = {**good, "protocols": protocol, "certificate": None, "key": None}
    if make is not None:
        made = make(authority)
        certificate, key = made.write(tmp_path, "wrong")
        wrong |= {"certificate": certificate, "key": key}
        if kind == "revoked":
            given = with_revoked(tmp_path, authority, good, made)
    with serving(given) as server, pytest.raises(ConnectivityError, match=words):
        asked(wrong, server)


def test_a_handshake_has_the_time_of_an_opening(good, caplog):
    with (
        serving(good, first_bytes_timeout=0.3) as server,
        socket.create_connection(("127.0.0.1", server.port), 5) as sock,
    ):
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert sock.recv(100) == b""
        eventually(lambda: "the TLS handshake was not done in time" in caplog.text)


# Certificates change


def test_files_that_change_are_read_again(tmp_path, authority, good, caplog, monkeypatch):
    monkeypatch.setattr(links, "LOOK_S", 0.0)
    caplog.set_level(logging.INFO, "pywan.tls")
    there = options(tmp_path, authority, authority.certificate(hosts=["elsewhere.example"]), "there")
    with serving(there) as server:
        with pytest.raises(ConnectivityError, match="the address is not in it"):
            asked(good, server)
        authority.certificate().write(tmp_path, "there")
        assert asked(good, server)["heard"] == "ping"
        assert "certificates were read again" in caplog.text
        (tmp_path / "there.pem").write_text("broken")
        assert asked(good, server)["heard"] == "ping"
        assert asked(good, server)["heard"] == "ping"
        errors = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "the ones before stay" in errors[0].getMessage()
        authority.certificate(hosts=["elsewhere.example"]).write(tmp_path, "there")
        with pytest.raises(ConnectivityError, match="the address is not in it"):
            asked(good, server)


def test_a_reload_refuses_what_cannot_be_used(tmp_path, authority, good):
    mine = Links(good)
    before = mine.contexts()
    (tmp_path / "good.pem").write_text("broken")
    with pytest.raises(ConfigurationError, match="there is no certificate with a key in it"):
        mine.reload()
    assert mine.contexts() is before
    authority.certificate().write(tmp_path, "good")
    assert mine.reload() == [good["certificate"], good["key"], good["trusted_certificates"]]
    assert mine.contexts() is not before


def test_what_ends_soon_is_said_once_a_day(tmp_path, authority, caplog, monkeypatch):
    mine = Links(options(tmp_path, authority, authority.certificate(ends=9 * DAY + DAY / 2), "soon"))
    (said,) = mine.endings()
    assert f"ssl-certificate {tmp_path}/soon.pem ends in 9 days, on 20" in said
    assert mine.status()["certificates"] == [said]
    mine.contexts()
    assert caplog.text.count("ends in 9 days") == 1
    monkeypatch.setattr(links, "SAY_S", 0.0)
    mine.contexts()
    assert caplog.text.count("ends in 9 days") == 2


def test_words_for_what_ends():
    at_s = datetime.datetime(2026, 5, 6, 7, 8, tzinfo=datetime.UTC).timestamp()
    ending = contexts.Ending("it", at_s)
    assert ending.said(at_s - 15 * 86_400) == ""
    assert ending.said(at_s - 13.5 * 86_400) == "it ends in 13 days, on 2026-05-06 07:08 UTC"
    assert ending.said(at_s - 3 * 3600) == "it ends in 3 hours, on 2026-05-06 07:08 UTC"
    assert ending.said(at_s + 1) == "it has ended on 2026-05-06 07:08 UTC"
    assert now().timestamp() == pytest.approx(time.time(), abs=60)


# A site


def test_a_site_over_tls(good):
    with pywan.Locator("loc", distributed_system_id=1, port=0, ssl=good) as locator:
        with pywan.Cache("m", locators=str(locator.address), ssl=good) as cache:
            assert cache.status()["ssl"] == {
                "components": ["cluster", "gateway", "locator", "server"],
                "stream": "TLS in memory",
                "certificates": [],
            }
            assert locator.status()["ssl"]["components"] == ["cluster", "gateway", "locator", "server"]
            assert (
                cache.reload_certificates()
                == locator.reload_certificates()
                == [
                    good["certificate"],
                    good["key"],
                    good["trusted_certificates"],
                ]
            )
        with pytest.raises(pywan.NoLocatorError, match="this port speaks TLS only"):
            pywan.Cache("plain", locators=str(locator.address), join_timeout=1.0)


def test_all_of_the_package_connects_and_listens_as_links_say():
    """Whoever forgot it would speak plainly."""
    root = Path(pywan.__file__).parent
    wrong = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts[0] in ("transport", "testing"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            given = {keyword.arg for keyword in node.keywords}
            if (name in ("call_once", "ControlClient") and "way" not in given) or (
                name in ("ControlServer", "GatewayReceiver") and "gate" not in given
            ):
                wrong.append(f"{place}:{node.lineno}: {name}")
            if name in ("sockets.connect", "Links.connect") or (name == "connect" and place.name == "client.py"):
                wrong.append(f"{place}:{node.lineno}: {name}")
    assert not wrong, "\n".join(wrong)

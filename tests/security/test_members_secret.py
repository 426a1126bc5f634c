"""Members and locators that prove the secret of their site to each other."""

from __future__ import annotations

import contextlib
import secrets

import pytest

import pywan
from pywan.base.addresses import Address
from pywan.errors import AuthenticationError, ConfigurationError, NoLocatorError, NotAuthorizedError, PywanError
from pywan.security.guard import Guard
from pywan.security.members_secret import MembersSecret
from pywan.security.operations import LOCATOR, MEMBER
from pywan.testing.waiting import eventually
from pywan.transport.control import ControlClient, ControlServer, call_once
from pywan.transport.links import Gate, Links
from support.made_certificates import Authority, options


@pytest.fixture
def make_file(tmp_path):
    def make(name, *lines):
        file = tmp_path / name
        file.write_text("".join(f"{line}\n" for line in lines or [secrets.token_hex(32)]))
        file.chmod(0o600)
        return str(file)

    return make


@contextlib.contextmanager
def site(file, **more):
    security = {"members_secret_file": file}
    with contextlib.ExitStack() as stack:
        locator = stack.enter_context(pywan.Locator("loc", distributed_system_id=1, port=0, security=security, **more))

        def member(name, security=security):
            return stack.enter_context(pywan.Cache(name, locators=str(locator.address), security=security, **more))

        yield locator, member


def way_of(file):
    return Links(secret=MembersSecret(file)).cluster


def test_members_that_prove_it_share_a_region(make_file):
    with site(make_file("secret")) as (locator, member):
        one, two = member("one"), member("two")
        made = {"type": "PARTITION", "redundant_copies": 1, "total_num_buckets": 7}
        region, other = one.create_region("data", **made), two.create_region("data", **made)
        region.put_all({n: n for n in range(100)})
        assert dict(other.items()) == {n: n for n in range(100)}
        assert {each["name"] for each in locator.members()} == {"one", "two"}
        assert locator.status()["security"]["members_secret"]


@pytest.mark.parametrize("theirs", [None, "another"])
def test_who_lacks_it_does_not_join(make_file, theirs):
    security = {"members_secret_file": make_file(theirs)} if theirs else None
    with site(make_file("secret")) as (locator, member), pytest.raises(PywanError) as told:
        member("stranger", security)
    assert isinstance(told.value, (AuthenticationError, NotAuthorizedError, NoLocatorError))
    assert "members-secret-file" in str(told.value) and locator.members() == []


def test_a_member_says_nothing_to_a_locator_that_lacks_it(make_file):
    with pywan.Locator("loc", distributed_system_id=1, port=0) as locator:
        with pytest.raises(AuthenticationError, match="no member or locator of this site"):
            pywan.Cache("one", locators=str(locator.address), security={"members_secret_file": make_file("s")})
        assert locator.members() == []


def test_each_request_of_members_needs_it_and_no_other_one(make_file):
    """Who has no secret asks what operators ask, as before."""
    file = make_file("secret")
    with site(file) as (locator, member):
        one = member("one")
        for place, table in ((locator, LOCATOR), (one, MEMBER)):
            address = Address(place.host, place.port)
            for op, needs in table.items():
                if op.startswith("stop"):
                    continue
                refusals = []
                for way in (Links().cluster, way_of(file)):
                    try:
                        call_once(address, op, way=way, timeout=20)
                        refusals.append("")
                    except PywanError as error:
                        refusals.append(str(error))
                words = "is for members and locators of this site alone"
                assert (words in refusals[0]) is (needs.of_members or op == "locator-join"), (op, refusals)
                assert words not in refusals[1], op


def test_two_secrets_hold_while_one_takes_the_place_of_the_other(make_file, monkeypatch):
    monkeypatch.setattr("pywan.security.members_secret.LOOK_S", 0.0)
    old, new = secrets.token_hex(32), secrets.token_hex(32)
    files = {name: make_file(name, old) for name in ("a", "b")}
    with ControlServer(
        "127.0.0.1", 0, lambda request, peer: {}, name="a", guard=Guard(None, secret=MembersSecret(files["a"]))
    ) as server:
        address, way = ("127.0.0.1", server.port), way_of(files["b"])
        server.start()
        for a, b in ((old, old), (old + "\n" + new, old), (old + "\n" + new, new + "\n" + old), (new, new)):
            make_file("a", a), make_file("b", b)
            assert call_once(address, "ping", way=way)["ok"]
        make_file("b", old)
        with pytest.raises(AuthenticationError, match="another members-secret-file"):
            call_once(address, "ping", way=way)


def test_a_proof_passed_on_to_another_process_is_worth_nothing(make_file, tmp_path):
    """Somebody whom a member connects to connects to a real one, and passes all messages on: his certificate is
    another one, and the proofs are about the certificate."""
    file, authority = make_file("secret"), Authority()
    real, false, caller = (options(tmp_path, authority, authority.certificate(n), n) for n in ("real", "false", "x"))
    secret = MembersSecret(file)
    links = Links(real, listener="real")
    guard = Guard(None, secret=secret)
    protocols = {b"PWC1": "locator"}
    with ControlServer(
        "127.0.0.1", 0, lambda request, peer: {"real": True}, name="r", gate=Gate(links, protocols), guard=guard
    ) as server:
        server.start()
        assert call_once(("127.0.0.1", server.port), "ping", way=Links(caller, secret=secret).locator)["real"]
        onward = ControlClient(("127.0.0.1", server.port), way=Links(false).locator)
        passing = {"prove": 0}

        class PassesOn:
            """A guard's secret: all that is asked of it is asked of the real process."""

            def answer(self, request, bound_to):
                passing["prove"] += 1
                return {k: v for k, v in onward.call(**request).items() if k != "ok"}, None

        relay = Guard(None, secret=PassesOn())
        gate = Gate(Links(false, listener="false"), protocols)
        with ControlServer("127.0.0.1", 0, lambda request, peer: {}, name="f", gate=gate, guard=relay) as other:
            other.start()
            with pytest.raises(AuthenticationError, match="does not prove the secret"):
                call_once(("127.0.0.1", other.port), "ping", way=Links(caller, secret=secret).locator)
        assert passing["prove"] == 1
        onward.close()


@pytest.mark.parametrize(
    "messages",
    [
        [{}],
        [{"proof": bytes(32)}],
        [{"nonce": bytes(31), "keys": []}],
        [{"nonce": "x" * 32, "keys": [bytes(8)]}],
        [{"nonce": bytes(32), "keys": [bytes(8)]}],
        [{"nonce": bytes(32), "keys": [[]] * 3}],
        [None, {"proof": bytes(32)}],
        [None, {"proof": 7}],
        [None, {}],
        [None, None],
    ],
)
def test_what_is_no_proof_ends_the_connection(make_file, messages):
    secret = MembersSecret(make_file("secret"))
    guard = Guard(None, secret=secret)
    with ControlServer("127.0.0.1", 0, lambda request, peer: {}, name="a", guard=guard) as server:
        server.start()
        with ControlClient(("127.0.0.1", server.port)) as client:
            for fields in messages[:-1]:
                client.call("prove-member", **(secret.begin()[0] if fields is None else fields))
            with pytest.raises(AuthenticationError, match="does not prove the secret"):
                client.call("prove-member", **(secret.begin()[0] if messages[-1] is None else messages[-1]))


def test_a_request_before_the_second_message_is_a_strangers(make_file):
    secret = MembersSecret(make_file("secret"))
    with ControlServer("127.0.0.1", 0, lambda request, peer: {}, name="a", guard=Guard(None, secret=secret)) as server:
        server.start()
        with ControlClient(("127.0.0.1", server.port)) as client:
            client.call("prove-member", **secret.begin()[0])
            with pytest.raises(NotAuthorizedError, match="is for members and locators of this site alone"):
                client.call("adopt-buckets")


@pytest.mark.parametrize(
    ("lines", "mode", "words"),
    [
        ([""], 0o600, "0 lines"),
        (["x" * 31], 0o600, "has not 32 to 1024 bytes"),
        (["x" * 40] * 3, 0o600, "3 lines"),
        (["x" * 40], 0o644, "chmod 600"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name_and_without_its_content(make_file, tmp_path, lines, mode, words):
    file = make_file("secret", *lines)
    (tmp_path / "secret").chmod(mode)
    with pytest.raises(ConfigurationError, match=words) as told:
        pywan.Locator("loc", distributed_system_id=1, port=0, security={"members_secret_file": file})
    assert f"members-secret-file {file}" in str(told.value) and "xxx" not in str(told.value)


def test_a_locator_of_the_site_that_lacks_it_is_not_met(make_file):
    with (
        site(make_file("secret")) as (locator, _),
        pywan.Locator("other", distributed_system_id=1, port=0, locators=str(locator.address)) as other,
    ):
        eventually(lambda: any("members-secret-file" in each for each in other.status()["problems"]))
        assert locator.known_sites() == {1: [locator.address]}

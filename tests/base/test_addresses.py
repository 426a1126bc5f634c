"""Addresses: the grammar people type, and names mapped to this machine."""

import pytest

from pywan.base.addresses import Address, parse_locators, resolve
from pywan.errors import ConfigurationError, ConnectivityError
from pywan.testing.waiting import LIMIT_S


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (None, []),
        ("h1[10334]", [Address("h1", 10334)]),
        ("h1[1],h2@10.0.0.7[2]", [Address("h1", 1), Address("10.0.0.7", 2)]),
        (" h1 [1] , h2:3 ", [Address("h1", 1), Address("h2", 3)]),
        ("::1[10334]", [Address("::1", 10334)]),
        ("h1[1],h1[1],", [Address("h1", 1)]),
        (["h1[1]", "h2[2]"], [Address("h1", 1), Address("h2", 2)]),
    ],
)
def test_a_locator_list_is_read_as_geode_writes_it(text, expected):
    assert parse_locators(text) == expected


@pytest.mark.parametrize(
    "text", ["h1", "h1[]", "h1[x]", "h1[0]", "h1[65536]", "[10334]", "h1[1", "h 1[1]", "a:b:1", "h1[-1]", "@[1]"]
)
def test_a_bad_address_is_refused_with_its_text(text):
    with pytest.raises(ConfigurationError) as error:
        parse_locators(f"good[1],{text}")
    assert text.strip() in str(error.value)


def test_too_many_locators_are_refused():
    with pytest.raises(ConfigurationError, match="at most 64"):
        parse_locators(",".join(f"h{i}[1]" for i in range(65)))


def test_names_are_mapped_by_pairs(monkeypatch):
    monkeypatch.setenv("PYWAN_HOSTS", "ny_host=127.0.0.1, ln_host=127.0.0.2")
    assert resolve("LN_host") == "127.0.0.2"
    assert resolve("10.1.2.3") == "10.1.2.3"


def test_names_are_mapped_by_a_hosts_file_that_may_change(monkeypatch, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# sites\n127.0.0.2  ln_host ln  # London\n\n127.0.0.3 tk_host\n")
    monkeypatch.setenv("PYWAN_HOSTS", str(hosts))
    assert (resolve("ln"), resolve("tk_host")) == ("127.0.0.2", "127.0.0.3")
    hosts.write_text("127.0.0.44 tk_host\n")
    assert resolve("tk_host") == "127.0.0.44"


@pytest.mark.parametrize("setting", ["ny_host", "/no/such/file", "ny_host=", "=127.0.0.1", "ny_host=not-an-ip"])
def test_a_bad_hosts_setting_names_the_variable(monkeypatch, setting):
    monkeypatch.setenv("PYWAN_HOSTS", setting)
    with pytest.raises(ConfigurationError, match="PYWAN_HOSTS"):
        resolve("ny_host")


def test_a_bad_line_in_the_hosts_file_is_named(monkeypatch, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 a\nlocalhost b\n")
    monkeypatch.setenv("PYWAN_HOSTS", str(hosts))
    with pytest.raises(ConfigurationError, match=r"hosts:2"):
        resolve("a")


def test_an_unknown_name_says_how_to_map_it(monkeypatch):
    monkeypatch.delenv("PYWAN_HOSTS", raising=False)
    with pytest.raises(ConnectivityError, match=r"PYWAN_HOSTS=no-such-host.invalid="):
        resolve("no-such-host.invalid", timeout=20)
    assert resolve("localhost", timeout=LIMIT_S) in ("127.0.0.1", "::1")

"""A configuration from the network may name only classes that the process allows. It is checked before any of their
code runs.
"""

from __future__ import annotations

import sys

import pytest

import pywan
from pywan.config.attributes import check_callbacks_allowed
from pywan.config.classes import make_instance, to_callback_patterns
from pywan.errors import ConfigurationError
from pywan.transport.control import call_once
from support.commands import CommandedSite, CommandFailed

SHOP = """
from subprocess import Popen
import subprocess
import pywan


class Keep(pywan.GatewayEventFilter, pywan.GatewayEventSubstitutionFilter, pywan.CacheListener):
    made = []

    def __init__(self, word="none"):
        self.made.append(word)


class NoFilter:
    def __init__(self):
        open(__file__ + ".was-called", "w").close()


class Leaves(pywan.GatewayEventFilter):
    def __init__(self):
        raise SystemExit(3)


class Interrupts(pywan.GatewayEventFilter):
    def __init__(self):
        raise KeyboardInterrupt


def function():
    open(__file__ + ".was-called", "w").close()
"""
SENDER = {"remote_distributed_system_id": 2, "manual_start": True}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Its modules; each says by a file that it was imported."""
    folder = tmp_path / "classes"
    (folder / "shop").mkdir(parents=True)
    for name, text in {
        "shop/__init__.py": "",
        "shop/filters.py": SHOP,
        "shopping.py": SHOP,
        "leaves.py": "raise SystemExit(4)",
        "shop/deeper.py": SHOP,
    }.items():
        (folder / name).write_text(f"open(__file__ + '.was-imported', 'w').close()\n{text}")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] in ("shop", "shopping", "leaves")]:
        del sys.modules[name]


@pytest.fixture
def start(tmp_path):
    made = []

    def start(allow=()):
        site = CommandedSite(tmp_path, allow_callbacks=allow)
        made.append(site)
        site.start()
        return site

    yield start
    for site in made:
        site.close()


def untouched(folder) -> bool:
    return not list(folder.rglob("*.was-*"))


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "create gateway-sender", "id": "ln", **SENDER, "gateway_event_filters": "shop.filters:Keep"},
        {
            "op": "create gateway-sender",
            "id": "ln",
            **SENDER,
            "gateway_event_filters": [{"class": "shop.filters:Keep", "parameters": {"word": "x"}}],
        },
        {"op": "create gateway-sender", "id": "ln", **SENDER, "gateway_event_substitution_filter": "shop.filters:Keep"},
        {"op": "create region", "name": "data", "cache_listeners": ["shop.filters:Keep"]},
        {
            "op": "apply configuration",
            "things": [{"kind": "region", "name": "data", "attributes": {"cache_listeners": ["shop.filters:Keep"]}}],
        },
        {
            "op": "apply configuration",
            "things": [
                {
                    "kind": "gateway-sender",
                    "name": "ln",
                    "attributes": {**SENDER, "gateway_event_filters": ["shop.filters:Keep"]},
                }
            ],
        },
    ],
    ids=[
        "filter",
        "filter with parameters",
        "substitution filter",
        "listener",
        "listener of the configuration",
        "filter of the configuration",
    ],
)
@pytest.mark.parametrize("allow", ["", "shopping,shop.filter,shop.filters:Other"], ids=["none", "others"])
def test_a_class_that_is_not_allowed_is_not_even_imported(shop, start, request_, allow):
    site = start(allow)
    with pytest.raises(
        ConfigurationError,
        match=r"shop.filters:Keep.*\(.*\); start it with --allow-callbacks=shop.filters .*allow_callbacks.*cache.xml",
    ):
        call_once((site.cache.host, site.cache.port), **request_)
    assert site.cache.gateway_senders() == site.cache.regions() == {} and untouched(shop)


def test_a_running_sender_takes_no_class_that_is_not_allowed(shop, start):
    site = start()
    site.do("create gateway-sender --id=ln --remote-distributed-system-id=2 --manual-start=true")
    with pytest.raises(CommandFailed, match=r"shop.filters:Keep"):
        site.do("alter gateway-sender --id=ln --gateway-event-filter=shop.filters:Keep")
    site.do("alter gateway-sender --id=ln --gateway-event-filter=CLEAR")
    assert untouched(shop)


def test_what_a_locator_tells_is_not_believed_either(shop, start):
    site = start()
    site.change(
        action="put",
        kind="gateway-sender",
        name="ln",
        attributes={**SENDER, "gateway_event_filters": ["shop.filters:Keep"]},
    )
    site.change(action="put", kind="region", name="data", attributes={"type": "REPLICATE"})
    site.restart()
    (problem,) = site.problems
    assert "gateway-sender ln was not made" in problem and "--allow-callbacks=shop.filters" in problem
    assert set(site.cache.regions()) == {"data"} and untouched(shop)


@pytest.mark.parametrize("allow", ["*", "shop.*", "shop.filters", "shop.filters.*", ["x.y", "shop.filters:Keep"]])
def test_a_class_that_is_allowed_is_used(shop, start, allow):
    site = start(allow)
    site.do(
        "create gateway-sender --id=ln --remote-distributed-system-id=2 --manual-start=true "
        "--gateway-event-filter=shop.filters:Keep"
    )
    site.restart()
    assert site.problems == [] and site.cache.gateway_sender("ln").attributes.gateway_event_filters == (
        "shop.filters:Keep",
    )


def test_what_the_program_and_its_file_name_is_not_asked_for(shop, start):
    site = start()
    site.cache.create_gateway_sender("own", gateway_event_filters=["shop.filters:Keep"], **SENDER)
    site.xml = (
        '<gateway-sender id="ln" remote-distributed-system-id="2" manual-start="true"><gateway-event-filter>'
        "<class-name>shop.filters:Keep</class-name>"
        '<parameter name="word"><string>x</string></parameter></gateway-event-filter></gateway-sender>'
    )
    site.restart()
    assert sys.modules["shop.filters"].Keep.made[-1] == "x"


@pytest.mark.parametrize("name", ["NoFilter", "Popen", "subprocess.Popen", "function", "Nothing"])
def test_what_is_no_filter_is_not_called_though_its_module_is_allowed(shop, start, name):
    site = start("shop.*")
    with pytest.raises(CommandFailed, match=r"has no method before_enqueue|has no class"):
        site.do(
            f"create gateway-sender --id=ln --remote-distributed-system-id=2 --gateway-event-filter=shop.filters:{name}"
        )
    assert site.cache.gateway_senders() == {} and not list(shop.rglob("*.was-called")) and site.things() == []


@pytest.mark.parametrize("reference", ["shop.filters:Leaves", "shop.filters:Interrupts", "leaves:Filter"])
def test_a_class_that_wants_to_end_the_process_is_an_error_like_any_other(shop, start, reference):
    site = start("*")
    with pytest.raises(CommandFailed, match=r"SystemExit|KeyboardInterrupt"):
        site.do(f"create gateway-sender --id=ln --remote-distributed-system-id=2 --gateway-event-filter={reference}")
    assert site.cache.gateway_senders() == {}
    site.do("create region --name=data")  # The member goes on.


@pytest.mark.usefixtures("shop")
def test_ctrl_c_of_the_program_itself_stays_what_it_is():
    import shop.filters

    with pytest.raises(KeyboardInterrupt):
        make_instance(shop.filters.Interrupts, "filter")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("shop.*", "shop:A", True),
        ("shop.*", "shop.a.b:A", True),
        ("shop.*", "shopping:A", False),
        ("shop", "shop:A", True),
        ("shop", "shop.a:A", False),
        ("shop:A", "shop:A", True),
        ("shop:A", "shop:B", False),
        ("shop:A", "shop:A.Inner", False),
        ("*", "os:A", True),
        ("shop.a", "shop:a", False),
    ],
)
def test_a_pattern_means_what_it_says(pattern, name, matches):
    patterns = to_callback_patterns(pattern, "allow_callbacks")
    if matches:
        check_callbacks_allowed({"gateway_event_filters": name}, patterns, "sender")
    else:
        with pytest.raises(ConfigurationError):
            check_callbacks_allowed({"gateway_event_filters": name}, patterns, "sender")


@pytest.mark.parametrize("pattern", ["sh*p", "*.shop", "shop.*.x", "shop:*", "shop.**", "os;sys", "a b", ".*"])
def test_a_pattern_that_means_nothing_is_refused(pattern):
    with pytest.raises(ConfigurationError, match="names no classes"):
        pywan.Cache("server", locators="127.0.0.1[1]", allow_callbacks=pattern)


class Leaving(
    pywan.GatewayEventFilter, pywan.GatewayEventSubstitutionFilter, pywan.CacheListener, pywan.GatewayConflictResolver
):
    def leave(self, *_):
        raise SystemExit(5)

    before_enqueue = before_transmit = after_acknowledgement = get_substitute_value = after_create = after_update = (
        on_event
    ) = leave


def test_a_callback_that_wants_to_end_its_thread_fails_like_any_other(network, caplog):
    """Its event goes on: the dispatcher, the receiver's thread and the caller stay."""
    ny, ln = network.add("ny ln")
    ln.receive()
    ln.cache.set_conflict_resolver(Leaving())
    ln.region(type="REPLICATE", cache_listeners=[Leaving()])
    ny.send_to(
        ln,
        parallel=False,
        gateway_event_filters=[Leaving()],
        gateway_event_substitution_filter=Leaving(),
        substitution_on_error="send",
    )
    ny.region(type="REPLICATE", cache_listeners=[Leaving()])
    ln.data["k"] = 0
    for value in range(3):
        ny.data["k"] = value
        network.settle()
    assert ln.data["k"] == 2
    for words in ("substitution filter failed", "the listener", "resolver failed"):
        assert words in caplog.text

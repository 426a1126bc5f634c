"""Commands, changes of a member's file and restarts in any order, against a plain model of what must be there after
each of them.

`CONFIGURATION_SEEDS=100-199` runs these seeds instead of the few of a usual run.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from pywan.errors import CacheXmlError
from pywan.testing.waiting import eventually
from support.commands import CommandedSite, CommandFailed

STEPS = 80
SENDERS, REGIONS, KEYS = ("a", "b"), ("x", "y", "z"), 6
TYPES = ("REPLICATE", "REPLICATE_PERSISTENT", "PARTITION", "NORMAL")
SENDER_DEFAULTS = {
    "remote_distributed_system_id": 2,
    "enable_persistence": False,
    "disk_synchronous": True,
    "dispatcher_threads": 5,
    "batch_size": 100,
}
REGION_DEFAULTS = {"type": "PARTITION", "gateway_sender_ids": ()}


def seeds() -> list[int]:
    first, _, last = os.environ.get("CONFIGURATION_SEEDS", "1-4").partition("-")
    return list(range(int(first), int(last or first) + 1))


@dataclass
class Sender:
    attributes: dict[str, Any]
    queued: int = 0

    @property
    def log_kind(self) -> tuple:
        """The attributes that a log must have been made for, so that the sender can use it again."""
        return self.attributes["remote_distributed_system_id"], self.attributes["dispatcher_threads"]


@dataclass
class Region:
    attributes: dict[str, Any]
    entries: dict[str, int] = field(default_factory=dict)

    @property
    def is_persistent(self) -> bool:
        return "PERSISTENT" in self.attributes["type"]

    @property
    def feeds(self) -> bool:
        return self.attributes["type"] != "NORMAL"


class Refused(Exception):
    """A command must fail, by the model."""


class Model:
    """The model of what exists: at the member, in its disk store, in the cluster configuration, and in its own file."""

    def __init__(self) -> None:
        self.senders: dict[str, Sender] = {}
        self.regions: dict[str, Region] = {}
        # The attributes that it was made for, and how many events are in it.
        self.queue_logs: dict[str, tuple[tuple, int]] = {}
        self.region_logs: dict[str, dict[str, int]] = {}
        self.wanted: dict[tuple[str, str], dict[str, Any]] = {}
        self.file: dict[tuple[str, str], dict[str, Any]] = {}

    # The member

    def make(self, kind: str, name: str, given: dict[str, Any]) -> None:
        if kind == "gateway-sender":
            if name in self.senders:
                raise Refused
            made = Sender({**SENDER_DEFAULTS, **given})
            if made.attributes["enable_persistence"]:
                log_kind, made.queued = self.queue_logs.get(name, (made.log_kind, 0))
                if log_kind != made.log_kind:
                    raise Refused
                self.queue_logs[name] = made.log_kind, made.queued
            self.senders[name] = made
        else:
            if name in self.regions:
                raise Refused
            region = Region({**REGION_DEFAULTS, **given})
            if region.is_persistent:
                region.entries = self.region_logs.setdefault(name, {})
            self.regions[name] = region

    def destroy(self, kind: str, name: str) -> None:
        things = self.senders if kind == "gateway-sender" else self.regions
        if name not in things:
            raise Refused
        if kind == "gateway-sender":
            if any(name in region.attributes["gateway_sender_ids"] for region in self.regions.values()):
                raise Refused
            if self.senders[name].attributes["enable_persistence"]:
                del self.queue_logs[name]
        elif self.regions[name].is_persistent:
            del self.region_logs[name]
        del things[name]

    def change(self, name: str, key: str, value: int | None) -> None:
        region = self.regions[name]
        if value is None:
            if region.entries.pop(key, None) is None:
                return
        else:
            region.entries[key] = value
        for id in region.attributes["gateway_sender_ids"]:
            if id in self.senders and region.feeds:
                self.senders[id].queued += 1
                if id in self.queue_logs and self.senders[id].attributes["enable_persistence"]:
                    self.queue_logs[id] = self.queue_logs[id][0], self.senders[id].queued

    # Starting it

    def stop(self) -> None:
        self.senders, self.regions = {}, {}

    def start(self) -> list[str]:
        """The things of the configuration that are not as it wants them. Refused if the file cannot be used."""
        for kind, name in sorted(self.file):
            self.make(kind, name, self.file[kind, name])
        problems = []
        for kind, name in sorted(self.wanted):
            given = self.wanted[kind, name]
            there = (self.senders if kind == "gateway-sender" else self.regions).get(name)
            if there is not None:
                if any(there.attributes[key] != value for key, value in given.items()):
                    problems.append(f"{kind} {name}")
                continue
            try:
                self.make(kind, name, given)
            except Refused:
                problems.append(f"{kind} {name}")
        return problems


class Run:
    """One seed: the site and the model, told the same."""

    def __init__(self, site: CommandedSite, seed: int) -> None:
        self.site, self.model, self.random = site, Model(), random.Random(seed)
        self.told: list[str] = []
        self.running = False
        self.values = 0

    def steps(self, count: int) -> None:
        doings = {
            self.create: 14,
            self.destroy: 8,
            self.alter_sender: 4,
            self.alter_region: 8,
            self.put: 30,
            self.restart: 8,
            self.restart_locator: 0.4,
            self.change_while_away: 4,
        }
        self.restart()
        for _ in range(count):
            (doing,) = self.random.choices(list(doings), list(doings.values()))
            doing()
            self.check()
        self.restart()
        self.check()

    def do(self, line: str, expected: bool) -> None:
        self.told.append(f"{line}{'' if expected else '     (refused)'}")
        try:
            self.site.do(line)
        except CommandFailed as error:
            assert not expected, error
        else:
            assert expected, f"{line} was not refused"

    # Commands

    def any_thing(self) -> tuple[str, str]:
        return self.random.choice(
            [*(("gateway-sender", id) for id in SENDERS), *(("region", name) for name in REGIONS)]
        )

    def is_there(self, kind: str, name: str) -> bool:
        return name in (self.model.senders if kind == "gateway-sender" else self.model.regions)

    def any_attributes(self, kind: str) -> dict[str, Any]:
        pick = self.random.choice
        if kind == "region":
            return {
                "type": pick(TYPES),
                "gateway_sender_ids": tuple(id for id in SENDERS if self.random.random() < 0.6),
            }
        return {
            "remote_distributed_system_id": pick((2, 2, 3)),
            "enable_persistence": pick((True, True, False)),
            "disk_synchronous": False,
            "dispatcher_threads": pick((1, 1, 2)),
        }

    def create(self) -> None:
        kind, name = self.any_thing()
        given = self.any_attributes(kind)
        is_there, skips = self.is_there(kind, name), self.random.random() < 0.3
        names = {"gateway_sender_ids": "gateway-sender-id"}
        words = ["--if-not-exists"] if skips else []
        for key, value in given.items():
            option = names.get(key, key.replace("_", "-"))
            words.append(f"--{option}={','.join(value) if isinstance(value, tuple) else str(value).lower()}")
        named = "--id" if kind == "gateway-sender" else "--name"
        line = f"create {kind} {named}={name} {' '.join(words)}"
        if is_there and skips:
            return self.do(line, True)
        try:
            self.model.make(kind, name, given)
        except Refused:
            return self.do(line, False)
        self.do(line, True)
        self.model.wanted[kind, name] = given

    def destroy(self) -> None:
        lacking = [thing for thing in sorted(self.model.wanted) if not self.is_there(*thing)]
        kind, name = self.random.choice(lacking) if lacking and self.random.random() < 0.3 else self.any_thing()
        is_there, skips = self.is_there(kind, name), self.random.random() < 0.3
        line = (
            f"destroy {kind} {'--id' if kind == 'gateway-sender' else '--name'}={name}{' --if-exists' if skips else ''}"
        )
        if not is_there:  # It may be wanted all the same, where it could not be made.
            return self.do(line, self.model.wanted.pop((kind, name), None) is not None or skips)
        try:
            self.model.destroy(kind, name)
        except Refused:
            return self.do(line, False)
        self.do(line, True)
        self.model.wanted.pop((kind, name), None)

    def alter_sender(self) -> None:
        id, size = self.random.choice(SENDERS), self.random.randrange(1, 9)
        self.do(f"alter gateway-sender --id={id} --batch-size={size}", id in self.model.senders)
        self.altered("gateway-sender", id, self.model.senders, {"batch_size": size})

    def alter_region(self) -> None:
        name, ids = self.random.choice(REGIONS), tuple(id for id in SENDERS if self.random.random() < 0.5)
        self.do(f"alter region --name={name} --gateway-sender-id={','.join(ids)}", name in self.model.regions)
        self.altered("region", name, self.model.regions, {"gateway_sender_ids": ids})

    def altered(self, kind: str, name: str, things: dict[str, Any], changes: dict[str, Any]) -> None:
        if name in things:
            things[name].attributes = {**things[name].attributes, **changes}
            if (kind, name) in self.model.wanted:
                self.model.wanted[kind, name] = {**self.model.wanted[kind, name], **changes}

    # Entries

    def put(self) -> None:
        for name in self.model.regions:
            for _ in range(self.random.randrange(4)):
                key, self.values = f"k{self.random.randrange(KEYS)}", self.values + 1
                value = None if self.random.random() < 0.3 else self.values
                region = self.site.cache.region(name)
                if value is None:
                    region.pop(key, None)
                else:
                    region[key] = value
                self.model.change(name, key, value)
                self.told.append(f"{name}[{key}] = {value}")

    # Processes

    def stop(self) -> None:
        if self.running:
            self.told.append("stop")
            self.site.stop()
            self.model.stop()
            self.running = False

    def start(self) -> None:
        """Starts the member, and first mends a file that cannot be used any more, as an operator would."""
        model = self.model
        self.site.xml = "".join(self.element(kind, name, given) for (kind, name), given in model.file.items())
        self.told.append(f"start with {self.site.xml or 'no file'}")
        try:
            problems = model.start()
        except Refused:
            model.stop()
            with pytest.raises(CacheXmlError):
                self.site.start()
            model.file = {}
            return self.start()
        self.site.start()
        assert sorted(problem.split(" was ")[0].split(" is ")[0] for problem in self.site.problems) == sorted(
            problems
        ), self.site.problems
        self.running = True

    def restart(self) -> None:
        self.stop()
        if self.random.random() < 0.4:
            things = sorted({self.any_thing() for _ in range(self.random.randrange(3))})
            self.model.file = {thing: self.any_attributes(thing[0]) for thing in things}
        self.start()

    @staticmethod
    def element(kind: str, name: str, given: dict[str, Any]) -> str:
        words = " ".join(
            f'{key.replace("_", "-")}="{str(value).lower()}"'
            for key, value in given.items()
            if key not in ("type", "gateway_sender_ids")
        )
        if kind == "gateway-sender":
            return f'<gateway-sender id="{name}" {words}/>'
        type_ = 'data-policy="normal"' if given["type"] == "NORMAL" else f'refid="{given["type"]}"'
        senders = ",".join(given["gateway_sender_ids"])
        return f'<region name="{name}"><region-attributes {type_} gateway-sender-ids="{senders}"/></region>'

    def restart_locator(self) -> None:
        self.told.append("restart the locator")
        self.site.restart_locator()
        eventually(lambda: self.site.locator.members(), what="the member at the locator")

    def change_while_away(self) -> None:
        """Runs a command at the other members of the site while this one is away."""
        self.stop()
        kind, name = self.any_thing()
        if self.random.random() < 0.5:
            self.told.append(f"{kind} {name} was destroyed")
            self.site.change(action="remove", kind=kind, name=name)
            self.model.wanted.pop((kind, name), None)
        else:
            given = self.any_attributes(kind)
            self.told.append(f"{kind} {name} was created with {given}")
            self.site.change(
                action="put",
                kind=kind,
                name=name,
                attributes={key: list(value) if isinstance(value, tuple) else value for key, value in given.items()},
            )
            self.model.wanted[kind, name] = given
        if self.random.random() < 0.5:
            self.restart_locator_alone()
        self.start()

    def restart_locator_alone(self) -> None:
        self.told.append("restart the locator alone")
        self.site.restart_locator()

    # Things that must be there

    def check(self) -> None:
        cache, model = self.site.cache, self.model
        assert set(cache.gateway_senders()) == set(model.senders) and set(cache.regions()) == set(model.regions)
        for id, sender in cache.gateway_senders().items():
            expected = model.senders[id]
            assert {key: getattr(sender.attributes, key) for key in expected.attributes} == expected.attributes, id
            assert len(sender._core.queue) == expected.queued and sender.ledger()["balanced"], (id, sender.ledger())
        for name, region in cache.regions().items():
            wanted = model.regions[name]
            assert (region.type, region.gateway_sender_ids) == (
                wanted.attributes["type"],
                wanted.attributes["gateway_sender_ids"],
            ), name
            assert dict(region) == wanted.entries, name
        assert {(thing["kind"], thing["name"]) for thing in self.site.locator.cluster_configuration()} == set(
            model.wanted
        )


@pytest.mark.parametrize("seed", seeds())
def test_after_any_commands_and_restarts_everything_is_there(tmp_path, seed):
    site = CommandedSite(tmp_path)
    run = Run(site, seed)
    try:
        run.steps(STEPS)
    except BaseException:
        print(f"\nCONFIGURATION_SEEDS={seed}", *run.told, sep="\n  ")
        raise
    finally:
        site.close()

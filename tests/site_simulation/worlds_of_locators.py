"""Owns the worlds of a site of two or three locators and a few members: who coordinates, and who hears the decisions.

The coordinator, the choice, the takeover and the members' sessions are the product's. Time, network and disks are
simulated. What is told is checked at once: a locator that has taken over knows all that anybody was ever told, and
nothing is told any more by an earlier coordinator that the later one does not know.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan.coordination import encoding, plain
from pywan.coordination.actions import Store
from pywan.coordination.agent_session import AgentSession, Remembered, tables_in
from pywan.coordination.choice import Choice, Step
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.joins import join_of
from pywan.coordination.messages import Refused
from pywan.coordination.proofs import is_proved, with_proved
from pywan.coordination.records import follower_of, plain_records, records_of
from pywan.coordination.requests import read_requests, take_requests
from pywan.coordination.tables import NO_DECISION, DecisionId, Incarnation, Kind, Reach, RegionAttributes
from pywan.coordination.takeover import StandbyAnswer, Takeover
from pywan.errors import PywanError

from .broken import Broken
from .simulation import MS, Network, Node, Simulation

TIMEOUT_US = 1000 * MS
CALL_US = 600 * MS
POLL_US = 100 * MS
STORED_US = 500 * MS
GOES_ON_US = 15 * TIMEOUT_US  # So long after a kill at the latest, a site goes on that had a standby.
REGION = RegionAttributes(Kind.REPLICATE, total_num_buckets=2)
Reply = Callable[[dict[str, Any] | None], object]


class Locator(Node):
    def __init__(self, world: Locators, name: str) -> None:
        super().__init__(world.simulation, name)
        self.world = world
        self.journal = world.journals[name]
        self.choice = Choice(name, 1, recovers=False)
        self.core: Coordinator | None = None
        self.takeover: Takeover | None = None
        self._waiting_for: list[tuple[Callable[[], bool], Callable[[bool], object], int]] = []
        self.choice.coordinator, self.choice.term, self.choice.identity = world.claims[name]
        self.choice.address = self.choice.coordinator
        if self.choice.leads:
            self._open()
        self.every(30 * MS, self._tick)
        self.every(300 * MS, self._ask_peers)
        self.after_us(10 * MS, self._mirror)

    def after_us(self, delay_us: int, what: Callable[[], object]) -> None:
        self.simulation.after(delay_us, lambda: self.do(what))

    # --- its file, and its part ---

    def _keep_claim(self) -> None:
        self.world.claims[self.name] = self.choice.coordinator, self.choice.term, self.choice.identity

    def _open(self) -> None:
        rng = self.simulation.rng
        self.takeover = None
        self.core = Coordinator(
            self.name,
            self.journal,
            draw_step=functools.partial(random.Random(rng.randrange(1 << 60)).randint, 1, 1 << 16),
            now_us=self.clock(),
            site_identity="site",
            member_timeout_us=TIMEOUT_US,
        )
        self.choice.term = max(self.choice.term, *(each.term for each in self.journal), 0)
        self.core.site.term = self.choice.term
        self.choice.identity = self.core.site.identity
        self._keep_claim()

    def _follow(self) -> None:
        self.core = None
        self._keep_claim()

    def lead(self, term: int) -> None:
        self.choice.lead(self.name, term)
        self._keep_claim()
        self._open()
        assert self.core is not None
        self.world.took_over(self.name, term, dict(self.core.site.controller_epochs))

    def act(self, me: Incarnation | None = None) -> list[Refused]:
        assert self.core is not None
        refused = []
        for action in self.core.take_actions():
            if isinstance(action, Store):
                self.journal.append(action)
                self.world.statistics["standbys that were out"] += self.core.standbys.is_ending
            elif getattr(action, "to", None) == me and isinstance(getattr(action, "message", None), Refused):
                refused.append(action.message)  # type: ignore[union-attr]
            elif hasattr(action, "member"):
                self.after_us(20 * MS, functools.partial(self._probe, self.core, action.member.incarnation))
        return refused

    def _probe(self, core: Coordinator, member: Incarnation) -> None:
        """A process that has ended refuses. One that is there may be cut off, so its answer says nothing."""
        if self.core is core:
            if self.world.is_there(member):
                core.not_probed(member)
            else:
                core.probed(member, Reach.REFUSED, self.clock())
            self.act()

    def pump(self) -> None:
        waiting, self._waiting_for = self._waiting_for, []
        for holds, then, until_us in waiting:
            if holds():
                then(True)
            elif self.clock() >= until_us:
                then(False)
            else:
                self._waiting_for.append((holds, then, until_us))

    def _when(self, holds: Callable[[], bool], then: Callable[[bool], object], within_us: int) -> None:
        self._waiting_for.append((holds, then, self.clock() + within_us))

    def _tick(self) -> None:
        if self.choice.leads and self.core is not None:
            self.core.tick(self.clock())
            self.act()
            self.core.next_us()
        elif self.takeover is not None and self.takeover.is_due(self.clock()):
            self.lead(self.choice.term + 1)

    # --- what it asks ---

    def _ask_peers(self) -> None:
        for name in self.world.locators:
            if name != self.name:
                self.world.network.ask(
                    self, name, {"op": "who"}, functools.partial(self._received_claim, name), lambda: None, CALL_US
                )

    def _received_claim(self, name: str, claim: dict[str, Any]) -> None:
        has_decided = self.core is not None and self.core.site.number > 0
        step = self.choice.take_answer(claim, name, has_decided=has_decided, now_us=self.clock())
        if step is Step.FOLLOW:
            self._follow()
        elif step is Step.LEAD and self.core is None:
            self.lead(self.choice.term)
        self._keep_claim()

    def _mirror(self) -> None:
        choice = self.choice
        if choice.leads or not choice.coordinator:
            self.after_us(50 * MS, self._mirror)
            return
        if self.takeover is None:
            self.takeover = Takeover(
                self.name,
                member_timeout_us=TIMEOUT_US,
                draw_round=lambda: self.simulation.rng.randrange(1, 1 << 60),
                now_us=self.clock(),
            )
            for store in self.journal:
                self.takeover.stored(store, is_whole=False)
        takeover, sent_us = self.takeover, self.clock()
        request = {
            "op": "mirror",
            "locator": self.name,
            "address": self.name,
            "term": choice.term,
            "stored": encoding.plain_decision_id(takeover.newest),
            "records_term": takeover.term,
            "is_standby": takeover.is_standby,
        }
        self.world.network.ask(
            self,
            choice.coordinator,
            request,
            lambda reply: self._mirrored(takeover, sent_us, reply),
            lambda: self.after_us(50 * MS, self._mirror),
            CALL_US,
        )

    def _mirrored(self, takeover: Takeover, sent_us: int, reply: dict[str, Any]) -> None:
        self.after_us(1 * MS if reply.get("decides") else 50 * MS, self._mirror)
        if self.takeover is not takeover or self.choice.leads:
            return
        if reply.get("lead") and reply["term"] == self.choice.term + 1:
            self.lead(reply["term"])
        elif reply["decides"] and reply["term"] >= self.choice.term:
            self.choice.term = reply["term"]
            self._keep_claim()
            takeover.received(sent_us)
            if reply["records"] is not None:
                store = records_of(plain.unpack(reply["records"]))
                if reply["whole"]:
                    self.journal.clear()
                self.journal.append(store)
                takeover.stored(store, is_whole=reply["whole"])

    # --- what it is asked ---

    def asked(self, request: dict[str, Any], reply: Reply) -> None:
        op = request.pop("op")
        if op == "who":
            has_decided = self.core is not None and self.core.site.number > 0
            reply(self.choice.claim(has_decided=has_decided))
        elif op == "mirror":
            self._on_mirror(request, reply)
        elif op == "coordination-standby":
            self._on_standby(request, reply)
        else:
            self._on_member(op, request, reply)

    def _on_mirror(self, request: dict[str, Any], reply: Reply) -> None:
        told, core = follower_of(request), self.core
        if core is None or not self.choice.leads or request["term"] > self.choice.term:
            has_given = self.choice.coordinator == told.name and self.choice.term == request["term"] + 1
            reply({"decides": False, "term": self.choice.term, "lead": has_given and self.world.has_given == told.name})
            return
        core.receive_from_locator(told, self.clock())
        self.act()

        def answer(_: bool) -> None:
            if self.core is not core:
                reply({"decides": False, "term": self.choice.term, "lead": self.world.has_given == told.name})
                return
            records, is_whole = None, False
            if core.site.newest != told.stored or told.term != core.site.term:
                stored = told.stored if told.term == core.site.term else NO_DECISION
                records, is_whole = core.site.records(stored)
            packed = None if records is None else plain.pack(plain_records(records))
            reply({"decides": True, "term": self.choice.term, "records": packed, "whole": is_whole})

        self._when(lambda: core.site.newest != told.stored or self.core is not core, answer, POLL_US)

    def _on_standby(self, request: dict[str, Any], reply: Reply) -> None:
        me, stored = encoding.incarnation_of(request["me"]), encoding.decision_id_of(request["stored"])
        told = StandbyAnswer(0, "")
        if self.choice.leads:
            reply({"leads": True, "round": 0, "term": self.choice.term})
            return
        if self.takeover is not None and is_proved(self.takeover.members.get(me), request["nonce"]):
            told = self.takeover.receive_from_member(me, stored, request["promised"], self.clock())
            if self.takeover.is_due(self.clock()):
                self.lead(self.choice.term + 1)
        reply({"leads": self.choice.leads, "round": told.round, "term": self.choice.term})

    def _told_of_standby(self, op: str, request: dict[str, Any]) -> dict[str, Any]:
        if self.takeover is None or op == "coordination-ask":
            return {}
        if op == "coordination-join":
            join = join_of(request)
            me, nonce, stored = join.profile.incarnation, join.nonce, max(join.stored, join.profile.seen)
        else:
            me, nonce = encoding.incarnation_of(request["me"]), request["nonce"]
            stored = encoding.decision_id_of(request["stored"])
        if not is_proved(self.takeover.members.get(me), nonce) or not self.takeover.receive_question(stored):
            return {}
        return {"standby_at": encoding.plain_decision_id(self.takeover.newest)}

    def _on_member(self, op: str, request: dict[str, Any], reply: Reply) -> None:
        core, now = self.core, self.clock()
        if op == "coordination-join" and self.takeover is not None and not self.choice.leads:
            join = join_of(request)
            self.takeover.receive_join(join.profile, join.nonces_before, join.stored)
        is_poll = op == "coordination-poll"
        if core is None or not self.choice.leads or request["term"] > self.choice.term:
            reply({"decides": False, **self._told_of_standby(op, request)})
            return
        if not core.standbys.may_decide and not (is_poll and core.standbys.is_ending):
            reply({"decides": False})
            return
        fields = {"decides": True, "coordinator": self.name, "site_identity": "site", "term": self.choice.term}
        fields["lease_us"] = TIMEOUT_US
        if op == "coordination-ask":
            me = encoding.incarnation_of(request["me"])
            refused = take_requests(core, me, read_requests(request["requests"]), now)
            self.act()
            number = core.site.number
            told = [[index, encoding.plain_refused(each)] for index, each in refused]
            self._tell(core, reply, {**fields, "decision": number, "refused_requests": told}, number, None)
            return
        if op == "coordination-join":
            join = join_of(request)
            me = join.profile.incarnation
            known = core.site.members.get(me)
            assert known is None or is_proved(known, join.nonce)
            if join.ended is not None:
                earlier = core.site.members.get(join.ended)
                of_folder = is_proved(earlier, join.nonces_before.get(join.ended.member_id))
                refusal = core.ended(join.ended, me, now, is_proved=of_folder)
                if refusal is not None:
                    self.act()
                    reply({**fields, "refused": [encoding.plain_refused(refusal)]})
                    return
            profile = with_proved(join.profile, join.nonces_before, core.site.members)
            core.join(profile, join.regions, join.holdings, join.stored, now)
            refusals = self.act(me)
            tables = None if refusals else core.tables(0, TIMEOUT_US)
        else:
            me, stored = encoding.incarnation_of(request["me"]), encoding.decision_id_of(request["stored"])
            core.renew(me, stored, now, [])
            refusals = self.act(me)
            tables = core.answer(stored.number, TIMEOUT_US) if not refusals and core.may_be_told(me) else None
        fields["refused"] = [encoding.plain_refused(each) for each in refusals]
        if tables is None:
            reply(fields)
            return
        fields["tables"] = plain.pack(encoding.plain_tables(tables))
        self._tell(core, reply, fields, tables.newest.number, tables.newest, is_poll=is_poll)

    def _tell(
        self,
        core: Coordinator,
        reply: Reply,
        fields: dict[str, Any],
        number: int,
        newest: DecisionId | None,
        *,
        is_poll: bool = False,
    ) -> None:
        may = core.standbys.may_tell_member if is_poll else core.standbys.may_tell

        def answer(is_stored: bool) -> None:
            if self.core is not core or not is_stored:
                reply({"decides": False})
                return
            if newest is not None and not core.standbys.is_ending:
                self.world.tells(self.name, self.choice.term, newest)
            reply(fields)

        self._when(lambda: self.core is not core or may(number), answer, STORED_US)


class Member(Node):
    def __init__(self, world: Locators, name: str) -> None:
        super().__init__(world.simulation, name)
        self.world = world
        rng = world.simulation.rng
        self.process = process = f"{name}/{rng.randrange(1 << 32)}/1"
        self.session = AgentSession(
            Incarnation(name, rng.randrange(1 << 32)),
            host="127.0.0.1",
            port=1,
            site=1,
            version="1",
            process=process,
            remembered=world.folders.get(name, Remembered()),
            has_ended=lambda process: not world.is_running(process),
            draw_id=lambda: rng.randrange(1 << 32),
            draw_nonce=lambda: rng.randbytes(16),
        )
        self._first = ""  # The locator that coordinated last.
        self._asks = False
        self.session.host("data", REGION, 100)
        self.every(20 * MS, self._go_on)

    def _go_on(self) -> None:
        session, now = self.session, self.clock()
        if self._asks:
            return
        word = session.word_to_standby(now)
        if word is not None:
            self._ask(word[0], {"op": "coordination-standby", **word[1]}, self._told_by_standby, lambda: None)
        elif not session.promise.round and now >= session.news_due_us:
            question = session.question(now)
            names = [*self.world.locators]
            self.simulation.rng.shuffle(names)
            self._ask_next(question, sorted(names, key=lambda each: each != self._first))
        elif batch := session.take_due(now):
            fields = session.encoded_requests(batch)
            self._ask(
                self._first, {"op": "coordination-ask", **fields}, lambda r: self._answered(batch, r), lambda: None
            )

    def _ask(
        self, to: str, request: dict[str, Any], then: Callable[[Any], object], failed: Callable[[], object]
    ) -> None:
        self._asks = True

        def end(what: Callable[[], object]) -> None:
            self._asks = False
            what()

        self.world.network.ask(self, to, request, lambda reply: end(lambda: then(reply)), lambda: end(failed), CALL_US)

    def _answered(self, batch: Any, reply: dict[str, Any]) -> None:
        self.session.take_answers(batch, reply)

    def _told_by_standby(self, reply: dict[str, Any]) -> None:
        had = self.session.promise.round
        self.session.take_word_of_standby(reply, self.clock())
        if self.session.promise.round not in (0, had):
            self.world.statistics["members that promised"] += 1
            self.world.note(f"{self.name} promises")

    def _ask_next(self, question: Any, names: list[str]) -> None:
        def failed() -> None:
            if names[1:]:
                self._ask_next(question, names[1:])
            else:
                self.session.news_failed("nobody coordinates", self.clock())

        def received(reply: dict[str, Any]) -> None:
            if "standby_at" in reply:
                self.session.receive_standby(names[0], reply["standby_at"])
            if reply.get("decides") is not True or reply.get("term", 0) < self.session.remembered.term:
                failed()
                return
            self._first = names[0]
            try:
                self.session.take_news(question, reply, tables_in(reply), self.clock())
            except PywanError as error:
                self.session.news_failed(str(error), self.clock())
                return
            self.session.settle()
            self.world.folders[self.name] = self.session.remembered

        self._ask(names[0], {"op": question.op, **question.fields}, received, failed)


class Locators:
    """All of it, from one seed."""

    kind = "locators"
    must_happen = (
        "takeovers",
        "standbys that were out",
        "members that promised",
        "kills with a standby",
        "incarnations that were revoked",
    )

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[str] = []
        self.simulation = Simulation(seed)
        self.network = Network(self.simulation)
        self.rng = self.simulation.rng
        self.statistics: Counter[str] = Counter()
        names = ["n1", "n2", "n3"][: self.rng.choice([2, 2, 3])]
        self.claims = dict.fromkeys(names, ("n1", 0, "site"))
        self.journals: dict[str, list[Store]] = {each: [] for each in names}
        self.folders: dict[str, Remembered] = {}
        self.has_given = ""
        self.history: list[tuple[int, DecisionId]] = []  # By which term, and the newest decision.
        self.taken: list[tuple[int, dict[int, int]]] = []  # Term, and the runs that the locator knew.
        self.locators: dict[str, Locator] = dict.fromkeys(names)
        self.members: dict[str, Member] = {}
        for name in names:
            self.start_locator(name)
        for name in ("a", "b", "c")[: self.rng.choice([1, 2, 3])]:
            self.start_member(name)

    def start_locator(self, name: str) -> None:
        self.locators[name] = self.network.nodes[name] = Locator(self, name)

    def start_member(self, name: str) -> None:
        self.members[name] = self.network.nodes[name] = Member(self, name)

    def is_there(self, member: Incarnation) -> bool:
        """Whether the incarnation lives."""
        node = self.members[member.name]
        return not node.is_dead and node.session.me == member

    def is_running(self, process: str) -> bool:
        return any(each.process == process and not each.is_dead for each in self.members.values())

    # --- what has to hold ---

    def note(self, text: str) -> None:
        self.trace.append(f"{self.simulation.now_us / 1e6:.4f} {text}")

    def must(self, holds: object, what: str) -> None:
        if not holds:
            past = "\n  ".join(self.trace[-100:])
            raise Broken(f"seed {self.seed}: {what}\n  {past}")

    def tells(self, locator: str, term: int, newest: DecisionId) -> None:
        self.statistics["answered"] += 1
        self.note(f"{locator} of term {term} tells {newest}")
        self.history.append((term, newest))
        for later, controller_epochs in self.taken:
            if later > term:
                self.must(
                    newest.number <= controller_epochs.get(newest.controller_epoch, -1),
                    f"{locator} of term {term} tells {newest}, and term {later} knows only {controller_epochs}",
                )

    def took_over(self, locator: str, term: int, controller_epochs: dict[int, int]) -> None:
        self.statistics["takeovers"] += 1
        self.note(f"{locator} takes over in term {term}")
        self.must(term not in [each for each, _ in self.taken], f"two locators decide in term {term}")
        for earlier, newest in self.history:
            self.must(
                newest.number <= controller_epochs.get(newest.controller_epoch, -1),
                f"{locator} takes over in term {term}, and lacks {newest} that term {earlier} told",
            )
        self.taken.append((term, controller_epochs))

    # --- a run ---

    def run(self, steps: int = 40) -> None:
        try:
            self._run(steps)
        finally:
            _core.simulate_monotonic_us(0)

    def _run(self, steps: int) -> None:
        self._run_for(1500)
        for _ in range(steps):
            if self.rng.random() < 0.1:
                self._kill_with_members()
            elif self.rng.random() < 0.5:
                self.rng.choice(
                    [self._kill, self._kill, self._cut, self._cut, self._heal, self._start, self._restart]
                )()
            self._run_for(self.rng.randrange(10, 1200))
        self._heal()
        self._start(everything=True)
        self._run_for(20_000)
        leaders = [each for each in self.locators.values() if each.choice.leads]
        self.must(len(leaders) == 1, f"a healthy site has the coordinators {[each.name for each in leaders]}")
        (leader,) = leaders
        core = leader.core
        assert core is not None
        self.must(core.standbys.may_decide, f"a healthy site decides nothing: {core.standbys.problem}")
        self.must(core.site.standby is not None, "a healthy site has no standby")
        for name, member in self.members.items():
            session = member.session
            self.must(
                session.is_joined and session.remembered.term == leader.choice.term,
                f"in a healthy site member {name} follows term {session.remembered.term}",
            )

    def _run_for(self, ms: int) -> None:
        self.simulation.run_until(self.simulation.now_us + ms * MS)

    def _all(self) -> list[Node]:
        return [*self.locators.values(), *self.members.values()]

    def _kill(self) -> None:
        node = self.rng.choice([*self.locators.values(), *self._all()])
        node.is_dead = True
        self.note(f"{node.name} is killed")

    def _start(self, *, everything: bool = False) -> None:
        for node in self._all():
            if node.is_dead and (everything or self.rng.random() < 0.5):
                self.note(f"{node.name} starts again")
                (self.start_locator if node.name in self.locators else self.start_member)(node.name)

    # --- a site that has to go on ---

    def _kill_with_members(self) -> None:
        """The coordinator is killed while it shows a standby, at any moment or at one at which somebody is behind.
        Members are killed with it, and start again, with their folders or without. The rest is up and connected, so the
        standby has to take over; an operator revokes those that come back without their folders, or never."""
        self._heal()
        self._start(everything=True)
        self._run_for(self.rng.randrange(3000))
        if self.rng.random() < 0.7:
            self._restart()
        moment = self.rng.choice([lambda: True, self._is_newly_named, self._is_newly_named, self._is_somebody_behind])
        until_us = self.simulation.now_us + 4 * TIMEOUT_US
        while self._with_standby() is None or not moment():
            if self.simulation.now_us > until_us:
                return
            self._run_for(1)
        leader = self._with_standby()
        assert leader is not None
        killed = [each for each in self.members.values() if self.rng.random() < 0.4]
        for node in (leader, *killed):
            node.is_dead = True
        self.statistics["kills with a standby"] += 1
        self.note(f"{leader.name} is killed with {[each.name for each in killed]}")
        for node in killed:
            if self.rng.random() < 0.9:
                self.simulation.after(self.rng.randrange(800) * MS, functools.partial(self._come_back, node.name))
        until_us = self.simulation.now_us + GOES_ON_US
        while not any(each.choice.leads for each in self.locators.values() if not each.is_dead):
            waits = {each.name: each.takeover.problem(each.clock()) for each in self.locators.values() if each.takeover}
            self.must(self.simulation.now_us < until_us, f"nobody has taken over from {leader.name}: {waits}")
            self._run_for(TIMEOUT_US // MS)
            self._revoke()

    def _come_back(self, name: str) -> None:
        has_folder = self.rng.random() < 0.8
        if not has_folder:
            self.folders.pop(name, None)
        self.note(f"{name} starts again{'' if has_folder else ' without its folder'}")
        self.start_member(name)

    def _with_standby(self) -> Locator | None:
        """The coordinator, if it shows a standby."""
        for each in self.locators.values():
            if each.core is not None and each.choice.leads and each.core.standbys.may_decide and not each.is_dead:
                return each if each.core.standbys.status()["standby"] else None
        return None

    def _is_newly_named(self) -> bool:
        """Whether a member has not heard who the standby is, or is not to hear it yet."""
        leader = self._with_standby()
        assert leader is not None and leader.core is not None
        standby = leader.core.site.standby
        return any(each.session.tables.standby != standby for each in self.members.values())

    def _is_somebody_behind(self) -> bool:
        leader = self._with_standby()
        assert leader is not None and leader.core is not None
        newest = leader.core.site.newest
        return any(each.session.tables.newest != newest for each in self.members.values())

    def _revoke(self) -> None:
        """An operator revokes the incarnations that cannot be proved to have ended."""
        for locator in self.locators.values():
            takeover = locator.takeover
            if locator.is_dead or takeover is None or not takeover.waits_for_members(locator.clock()):
                continue
            for each in takeover.awaited:
                member = self.members[each.name]
                known = dict(self.folders.get(each.name, Remembered()).nonces)
                if member.is_dead or (each != member.session.me and each.member_id not in known):
                    self.statistics["incarnations that were revoked"] += len(
                        takeover.revoke(each.name, locator.clock())
                    )

    def _restart(self) -> None:
        node = self.rng.choice(self._all())
        node.is_dead = True
        self.note(f"{node.name} is killed and starts again")
        (self.start_locator if node.name in self.locators else self.start_member)(node.name)

    def _cut(self) -> None:
        one, other = self.rng.sample([each.name for each in self._all()], 2)
        self.network.cut.add((one, other))
        if self.rng.random() < 0.5:
            self.network.cut.add((other, one))
        if self.rng.random() < 0.3:  # A locator is cut off from everybody, perhaps one way.
            name = self.rng.choice([*self.locators])
            others = [each.name for each in self._all() if each.name != name]
            self.network.cut |= {(name, each) for each in others}
            if self.rng.random() < 0.7:
                self.network.cut |= {(each, name) for each in others}
        self.note(f"{sorted(self.network.cut)} are cut")

    def _heal(self) -> None:
        self.network.heal()
        self.note("nothing is cut")

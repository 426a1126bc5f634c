"""A member's session with the coordinator, without sockets: the coordinator is real, and the test hands the messages
over, or loses them."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

import pytest

from pywan.base.nonces import NONCE_BYTES
from pywan.coordination import encoding, plain
from pywan.coordination.actions import Tell
from pywan.coordination.agent_session import (
    LEASE_STEPS,
    RETRY_US,
    AgentSession,
    Changed,
    Extended,
    GivenUp,
    Outcome,
    Remembered,
    tables_in,
)
from pywan.coordination.asked import REPEAT_US
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.joins import join_of
from pywan.coordination.messages import MayLeave, Refused, StillNeeded
from pywan.coordination.requests import take_request
from pywan.coordination.tables import Bucket, BucketKey, Incarnation, Kind, RegionAttributes
from pywan.errors import ProtocolError

ATTRIBUTES = RegionAttributes(Kind.REPLICATE, total_num_buckets=3)
LEASE_US = 5_000_000


class Site:
    """A coordinator, and the time of everybody."""

    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.core = Coordinator("locator", (), draw_step=lambda: 1, now_us=self.now_us, site_identity="site")
        self.now_us += 2 * LEASE_US
        self.core.tick(self.now_us)

    def member(self, name: str, remembered: Remembered | None = None) -> AgentSession:
        return AgentSession(
            Incarnation(name, 1),
            host="localhost",
            port=1,
            site=1,
            version="1",
            process="",
            remembered=remembered or Remembered(),
            has_ended=lambda process: False,
            draw_id=lambda: 2,
            draw_nonce=lambda: os.urandom(NONCE_BYTES),
        )

    def news(self, session: AgentSession) -> list[Outcome]:
        """One question for news, and its reply."""
        question = session.question(self.now_us)
        fields, me = question.fields, session.me
        if question.op == "coordination-join":
            join = join_of(fields)
            if join.ended is not None:
                self.core.left(join.ended, self.now_us)
            self.core.join(join.profile, join.regions, join.holdings, join.stored, self.now_us)
            since = 0
        else:
            stored = encoding.decision_id_of(fields["stored"])
            self.core.renew(me, stored, self.now_us)
            since = stored.number
        refused = [
            each.message
            for each in self.core.take_actions()
            if isinstance(each, Tell) and each.to == me and isinstance(each.message, Refused)
        ]
        reply: dict[str, Any] = {"decides": True, "coordinator": "locator", "site_identity": "site"}
        reply |= {"lease_us": LEASE_US, "refused": [encoding.plain_refused(each) for each in refused]}
        if not refused:
            reply["tables"] = plain.pack(encoding.plain_tables(self.core.tables(since, LEASE_US)))
        outcomes = session.take_news(question, reply, tables_in(reply), self.now_us)
        session.settle()
        return outcomes

    def asks(self, session: AgentSession, *, is_lost: bool = False) -> list[str]:
        """Sends the requests that are due, unless the message is lost. Returns their names."""
        batch = session.take_due(self.now_us)
        if batch and not is_lost:
            for request in session.encoded_requests(batch)["requests"]:
                take_request(self.core, session.me, request, self.now_us)
            self.core.take_actions()
            session.take_answers(batch, {"decides": True, "decision": self.core.site.number})
        return [str(request.fields[0]) for _, request in batch]


def test_an_altered_region_is_told_again_when_the_coordinator_has_not_looked_at_it_yet():
    """It has just started. The tables show the region, as it was, and the answer is newer than they are."""
    site = Site()
    session = site.member("m")
    site.news(session)
    session.host("data", ATTRIBUTES, 100)
    site.asks(session)
    site.news(session)
    request = session.host("data", replace(ATTRIBUTES, senders="s"), 100)
    batch = session.take_due(site.now_us)
    session.take_answers(batch, {"decides": True, "decision": site.core.site.number, "unheeded": True})
    site.news(session)
    assert not request.done and site.core.site.regions["data"].senders == ""
    site.now_us += REPEAT_US
    assert site.asks(session) == ["host"]
    site.news(session)
    assert request.done and site.core.site.regions["data"].senders == "s"


def test_a_request_that_was_lost_is_sent_again_until_the_tables_show_its_effect():
    site = Site()
    session = site.member("m")
    site.news(session)
    request = session.host("data", ATTRIBUTES, 100)
    assert site.asks(session, is_lost=True) == ["host"]
    assert site.asks(session) == [], "it is not repeated at once"
    assert session.next_request_us() == site.now_us + REPEAT_US
    site.now_us += REPEAT_US
    assert site.asks(session) == ["host"]
    assert not request.done, "the tables do not show it yet"
    site.news(session)
    assert request.done and session.next_request_us() is None
    assert session.tables.members[session.me].hosting == (("data", 100),)


def test_what_was_decided_is_done_before_the_lease_is_extended():
    site = Site()
    session = site.member("m")
    outcomes = site.news(session)
    assert [type(each) for each in outcomes] == [Changed, Extended]
    assert outcomes[1] == Extended(site.now_us + LEASE_US, site.now_us)


def test_many_answers_within_a_moment_extend_the_lease_in_steps():
    """Each step costs the member some work for each region, and a member that creates regions has many answers."""
    site = Site()
    session = site.member("m")
    site.news(session)
    steps = []
    for _ in range(1000):
        site.now_us += 1000
        steps += [each for each in site.news(session) if isinstance(each, Extended)]
    assert session.lease_until_us == site.now_us + LEASE_US
    step_us = LEASE_US // LEASE_STEPS
    assert all(later.until_us - earlier.until_us >= step_us for earlier, later in itertools.pairwise(steps))
    assert site.now_us + LEASE_US - steps[-1].until_us < step_us


def test_the_lease_counts_from_the_moment_at_which_the_question_was_sent():
    site = Site()
    session = site.member("m")
    site.news(session)
    question = session.question(site.now_us)
    outcomes = session.take_news(question, {"decides": True, "lease_us": LEASE_US}, None, site.now_us + 3_000_000)
    assert outcomes == [] and session.lease_until_us == site.now_us + LEASE_US


def test_a_member_that_was_given_up_begins_anew_and_tells_its_regions_again():
    site = Site()
    session = site.member("m")
    site.news(session)
    session.host("data", ATTRIBUTES, 100)
    site.asks(session)
    site.news(session)
    earlier = session.me
    site.core.left(earlier, site.now_us)
    assert site.news(session) == [GivenUp(Incarnation("m", 2))]
    assert session.me != earlier and not session.is_joined and session.lease_until_us == 0
    site.news(session)
    assert session.is_joined
    assert site.asks(session) == ["host"]
    site.news(session)
    assert session.tables.members[session.me].hosting == (("data", 100),)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_member_warns_of_a_twin_only_if_that_may_still_live(is_gone, caplog):
    site = Site()
    first = site.member("a")
    first._process = "here 1"
    site.news(first)
    second = site.member("a")
    second.me = Incarnation("a", 2)
    second._has_ended = lambda process: is_gone and process == "here 1"
    site.news(second)
    assert not second.is_joined and second.retries
    site.now_us = second.news_due_us
    site.news(second)
    assert second.is_joined == is_gone
    assert ("is not admitted" in caplog.text) != is_gone


def test_a_member_names_the_incarnations_that_have_used_its_folder():
    site = Site()
    first = site.member("m")
    site.news(first)
    second = site.member("m", first.remembered)
    second.me = Incarnation("m", 7)
    site.news(second)
    assert site.core.site.members[second.me].before == (1,)
    assert second.remembered.incarnations == (1, 7)
    site.core.left(second.me, site.now_us)
    site.news(second)  # It was given up, and begins anew.
    site.news(second)
    assert site.core.site.members[second.me].before == (1, 7)


def test_a_pause_grows_while_nobody_coordinates_and_what_is_remembered_stays():
    site = Site()
    session = site.member("m", Remembered("locator", "site"))
    assert session.news_failed("no locator answers", site.now_us)
    assert session.news_due_us == site.now_us + RETRY_US
    assert not session.news_failed("no locator answers", site.now_us)
    assert session.news_due_us == site.now_us + 2 * RETRY_US
    assert session.away_since_us == site.now_us and session.problem
    site.news(session)
    assert session.is_joined and not session.problem and session.away_since_us is None
    assert session.remembered.coordinator == "locator" and session.remembered.seen == session.tables.newest


def test_a_member_asks_whether_it_may_leave_until_it_may_or_stays():
    site = Site()
    session = site.member("m")
    site.news(session)
    batch = leave(site, session)
    session.take_answers(batch, {"decides": True, "decision": 1, "still_needed": ["n", [["data", 3, "o"]]]})
    assert session.still_needed == StillNeeded("n", (("data", 3, "o"),)) and session.may_leave is None
    site.now_us += REPEAT_US
    batch = session.take_due(site.now_us)
    session.take_answers(batch, {"decides": True, "decision": 1, "may_leave": [["data", 2]]})
    assert session.may_leave == MayLeave((("data", 2),)) and session.next_request_us() is None
    batch = leave(site, session)
    session.stay()
    session.take_answers(batch, {"decides": True, "decision": 1, "may_leave": []})
    assert session.may_leave is None, "it has changed its mind"
    assert [request.fields for _, request in session.take_due(site.now_us)] == [["stay"]]


def leave(site: Site, session: AgentSession) -> list:
    request = session.leave()
    batch = session.take_due(site.now_us)
    assert [each for _, each in batch] == [request] and request.fields == ["leave"]
    return batch


@pytest.mark.parametrize(
    "message", [MayLeave(), MayLeave((("r", 1),)), StillNeeded("m", (("r", 1, ""), ("s", 2, "n")))]
)
def test_what_a_leaver_is_told_travels_as_plain_values(message):
    if isinstance(message, MayLeave):
        assert encoding.may_leave_of(encoding.plain_may_leave(message)) == message
    else:
        assert encoding.still_needed_of(encoding.plain_still_needed(message)) == message


@pytest.mark.parametrize("value", [None, "r", [["r"]], [["r", -1]], [[1, 1]], ["m", [["r", 1]]], ["m", [["r", 1, 2]]]])
def test_what_a_leaver_is_told_is_refused_if_it_has_another_form(value):
    for read in (encoding.may_leave_of, encoding.still_needed_of):
        with pytest.raises(ProtocolError):
            read(value)


@pytest.mark.parametrize("request_", [None, [], ["nothing"], [["host"]], ["host"], ["caught-up", 1, 2, 3, 4], "leave"])
def test_a_request_that_is_none_is_refused_in_words(request_):
    site = Site()
    with pytest.raises(ProtocolError, match=r"coordination-ask|incarnation"):
        take_request(site.core, Incarnation("m", 1), request_, site.now_us)


@pytest.mark.parametrize("end", ["unhost", "destroy-region"])
def test_the_end_of_a_region_is_asked_until_the_tables_show_it_and_the_name_is_hosted_afterwards(end):
    site = Site()
    session = site.member("m")
    site.news(session)
    session.host("data", ATTRIBUTES, 100)
    site.asks(session)
    site.news(session)
    (session.unhost if end == "unhost" else session.destroy_region)("data")
    again = session.host("data", RegionAttributes(Kind.PARTITION, 5), 50)
    assert site.asks(session, is_lost=True) == [end], "an end that is repeated later must not end the new region"
    site.now_us += REPEAT_US
    assert site.asks(session) == [end] and session.has_ending_regions
    site.news(session)
    assert not session.has_ending_regions and site.asks(session) == ["host"]
    site.news(session)
    assert again.done and site.core.site.regions["data"].total_num_buckets == 5


def test_a_region_is_hosted_when_all_its_buckets_are_decided():
    site = Site()
    session = site.member("m")
    site.news(session)
    request = session.host("data", ATTRIBUTES, 100)
    site.asks(session)
    site.core.site.set_bucket(BucketKey("data", 1), Bucket(timeline=1))  # It has no primary now.
    site.news(session)
    assert session.tables.members[session.me].hosting == (("data", 100),) and not request.done


@pytest.mark.parametrize("shared", [False, True])
def test_a_member_reports_whether_others_may_have_its_region_as_it_knows_it(shared):
    site = Site()
    session = site.member("m")
    site.news(session)
    session.host("data", ATTRIBUTES, 100)
    site.asks(session)
    if shared:
        site.core.site.set_region("data", replace(ATTRIBUTES, shared=True))
    site.news(session)
    earlier = site.core.site.newest
    site.core = Coordinator("locator", (), draw_step=lambda: 2, now_us=site.now_us, site_identity="site")
    refused = encoding.plain_refused(Refused("the coordinator does not know all decisions", report=True))
    session.take_news(session.question(site.now_us), {"decides": True, "refused": [refused]}, None, site.now_us)
    site.news(session)
    assert site.core.site.recovery_epoch > earlier.controller_epoch
    assert site.core.site.regions == {"data": replace(ATTRIBUTES, shared=shared)}

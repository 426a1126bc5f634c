"""Owns what a member that may send events is told: buckets, profiles, a sender with its queue."""

from __future__ import annotations

from types import SimpleNamespace

from pywan.coordination.tables import NO_DECISION, Bucket, Incarnation, MemberProfile
from pywan.member.sender_roles import role_name

A, B, C = (Incarnation(name, number) for number, name in enumerate("abc", 1))


def bucket(primary, *isr):
    return Bucket(primary=primary, isr=isr)


class Queue:
    def __init__(self):
        self.led, self.lacks = set(), {}
        self.calls = 0
        self.runners = []

    def set_runners(self, members):
        self.runners = sorted(members)

    def run_of(self, region):
        return {"data": 8, "more": 108}.get(region)

    def lacking(self, first, count):
        return [self.lacks.get(number, 0) for number in range(count)] if first == 8 else [0] * count

    def lead(self, partitions, leads):
        self.calls += 1
        numbers = {partition - 8 for partition in partitions}
        self.led = self.led | numbers if leads else self.led - numbers


class Sender:
    def __init__(self, id, parallel):
        self.id, self.queue, self.attributes = (
            id,
            Queue(),
            SimpleNamespace(parallel=parallel, order_policy="key" if parallel else "thread"),
        )
        self.runs_on_others = False

    def note_runs_on_others(self, runs):
        was, self.runs_on_others = self.runs_on_others, runs
        return was != runs


def profile(member, *runs):
    hosting = tuple((role_name(id), 1) for id in runs)
    return MemberProfile(member, "127.0.0.1", 1, 1, "site", NO_DECISION, "1", hosting)


BUCKETS = {0: bucket(A, A, B), 1: bucket(B, A, B), 2: bucket(B, B, C), 3: None}

"""The checker of histories says yes to what one register can answer, and no to everything else."""

from __future__ import annotations

import itertools
import math
import random

from support.linearizability import ABSENT, Operation, Verdict, apply, check


def call(name, *arguments, answer=None, at, until=math.inf, process=0) -> Operation:
    return Operation(process, name, arguments, answer, at, until)


def test_operations_one_after_another_are_explained_by_their_order():
    history = [call("put", 1, at=0, until=1), call("get", answer=1, at=2, until=3)]
    assert check(history) is Verdict.LINEARIZABLE


def test_a_read_that_gives_an_older_value_after_a_newer_one_is_a_violation():
    history = [
        call("put", 1, at=0, until=1),
        call("put", 2, at=2, until=3),
        call("get", answer=1, at=4, until=5),
    ]
    assert check(history) is Verdict.VIOLATION


def test_two_reads_of_one_unfinished_write_may_not_disagree_backwards():
    write = call("put", 1, at=0, until=10)
    new, old = call("get", answer=1, at=1, until=2), call("get", answer=ABSENT, at=3, until=4)
    assert check([write, new, old]) is Verdict.VIOLATION
    assert check([write, old, call("get", answer=1, at=5, until=6)]) is Verdict.LINEARIZABLE


def test_a_lost_acknowledged_write_is_a_violation():
    assert check([call("put", 1, at=0, until=1), call("get", answer=ABSENT, at=2, until=3)]) is Verdict.VIOLATION


def test_a_write_of_unknown_outcome_may_have_happened_or_not_and_may_happen_late():
    unknown = call("put", 1, at=0)
    assert check([unknown, call("get", answer=1, at=5, until=6)]) is Verdict.LINEARIZABLE
    assert check([unknown, call("get", answer=ABSENT, at=5, until=6)]) is Verdict.LINEARIZABLE
    late = [unknown, call("get", answer=ABSENT, at=5, until=6), call("get", answer=1, at=7, until=8)]
    assert check(late) is Verdict.LINEARIZABLE


def test_a_write_of_unknown_outcome_does_not_happen_twice():
    history = [
        call("put", 1, at=0),
        call("get", answer=1, at=1, until=2),
        call("put", 2, at=3, until=4),
        call("get", answer=1, at=5, until=6),
    ]
    assert check(history) is Verdict.VIOLATION


def test_only_one_of_two_that_compare_and_set_may_win():
    both = [
        call("put", 1, at=0, until=1),
        call("replace", 1, 2, answer=True, at=2, until=9, process=1),
        call("replace", 1, 3, answer=True, at=2, until=9, process=2),
    ]
    assert check(both) is Verdict.VIOLATION
    one = [*both[:2], call("replace", 1, 3, answer=False, at=2, until=9, process=2)]
    assert check(one) is Verdict.LINEARIZABLE


def test_a_failed_compare_may_be_explained_by_a_write_of_unknown_outcome_alone():
    failed = [
        call("put", 1, at=0, until=1),
        call("replace", 1, 3, answer=False, at=4, until=5),
    ]
    assert check(failed) is Verdict.VIOLATION
    assert check([*failed, call("put", 2, at=2)]) is Verdict.LINEARIZABLE


def test_a_search_without_end_gives_up_and_does_not_pass():
    many = [call("put", n, at=0) for n in range(30)]
    many.append(call("get", answer="never written", at=1, until=2))
    assert check(many, steps_max=10_000) is Verdict.GAVE_UP


def made_by_one_register(random_: random.Random, calls: int) -> list[Operation]:
    """A history as a register makes it: each operation takes effect at one moment between its call and its return."""
    value, history, free = ABSENT, [], [0.0] * 4
    moments = sorted(random_.random() * calls for _ in range(calls))
    for number, moment in enumerate(moments):
        process = random_.randrange(4)
        if free[process] > moment:
            continue
        name = random_.choice(["get", "put", "destroy", "put_if_absent", "replace", "remove", "compare"])
        arguments = {
            "get": (), "destroy": (), "remove": (value,), "compare": (value, number),
        }.get(name, (number,))  # fmt: skip
        name = "replace" if name == "compare" else name
        value, answer = apply(name, arguments, value)
        called = free[process] + (moment - free[process]) * random_.random()
        free[process] = moment + random_.random() * 3
        history.append(Operation(process, name, arguments, answer, called, free[process]))
    return history


def test_whatever_one_register_answers_is_linearizable():
    for seed in range(100):
        history = made_by_one_register(random.Random(seed), 60)
        assert check(history) is Verdict.LINEARIZABLE, f"seed {seed}"


def explained_by_some_order(history: list[Operation]) -> bool:
    """The definition itself: tries every order of every choice of the operations of unknown outcome."""
    known = [each for each in history if not each.is_unknown]
    unknown = [each for each in history if each.is_unknown]
    for count in range(len(unknown) + 1):
        for some in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *some]):
                if any(b.returned < a.called for a, b in itertools.combinations(order, 2)):
                    continue
                value = ABSENT
                for each in order:
                    value, answer = apply(each.name, each.arguments, value)
                    if not each.is_unknown and answer != each.answer:
                        break
                else:
                    return True
    return False


def test_the_search_agrees_with_the_definition_on_small_histories():
    verdicts = set()
    for seed in range(400):
        random_ = random.Random(seed)
        history = []
        for number in range(5):
            name, arguments = random_.choice(
                [
                    ("get", ()),
                    ("put", (number,)),
                    ("destroy", ()),
                    ("put_if_absent", (number,)),
                    ("replace", (0, number)),
                ]
            )
            answer = random_.choice([None, 0, 1, True, False]) if name != "put" else None
            called = random_.randrange(8)
            returned = math.inf if random_.random() < 0.2 else called + random_.randrange(6)
            history.append(Operation(number, name, arguments, answer, called, returned))
        expected = explained_by_some_order(history)
        verdicts.add(expected)
        assert (check(history) is Verdict.LINEARIZABLE) == expected, f"seed {seed}: {history}"
    assert verdicts == {True, False}

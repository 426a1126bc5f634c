"""The requests of a member to its coordinator: when each is sent, and that the work grows with the news alone."""

from __future__ import annotations

from pywan.coordination.asked import REPEAT_US, REQUESTS_AT_ONCE, Asked

MANY = 5000


class Questions:
    """Requests about buckets. It counts how often one is asked whether it is done."""

    def __init__(self) -> None:
        self.asked = Asked()
        self.shown: set[int] = set()
        self.looks = 0

    def ask(self, number: int, *, needs_answer: bool = False):
        def is_done() -> bool:
            self.looks += 1
            return number in self.shown

        return self.asked.ask(
            ("ready", number), ["ready", number], is_done, (number,), needs_answer=needs_answer, known=0
        )

    def sent(self, now_us: int) -> list[int]:
        return [request.fields[1] for _, request in self.asked.take_due(now_us)]


def test_a_request_is_looked_at_when_it_is_asked_and_when_its_entry_changes():
    questions = Questions()
    for number in range(MANY):
        questions.ask(number)
    assert questions.looks == MANY, "each was looked at once, and no other one with it"
    questions.shown.add(7)
    questions.asked.entry_changed(7)
    questions.asked.entry_changed(MANY + 1)  # Nobody waits for that one.
    assert questions.asked.settle(known=1) == [("ready", 7)]
    assert questions.looks == MANY + 1 and len(questions.asked.requests) == MANY - 1
    assert questions.asked.settle(known=2) == [] and questions.looks == MANY + 1


def test_an_answer_is_taken_without_a_look_at_requests_that_it_does_not_settle():
    questions = Questions()
    for number in range(MANY):
        questions.ask(number)
    batch = questions.asked.take_due(now_us=1)
    questions.asked.answered(batch, decision=9)
    assert questions.asked.settle(known=1) == [] and questions.looks == MANY


def test_requests_are_sent_in_the_order_of_the_asking_and_a_message_has_a_limit():
    questions = Questions()
    for number in range(REQUESTS_AT_ONCE + 1):
        questions.ask(number)
    assert questions.sent(now_us=1) == [*range(REQUESTS_AT_ONCE)]
    assert questions.asked.next_us() == 0 and questions.sent(now_us=1) == [REQUESTS_AT_ONCE]


def test_a_request_is_repeated_after_a_pause_that_grows_until_it_is_settled():
    questions = Questions()
    request = questions.ask(1)
    assert questions.sent(0) == [1] and questions.asked.next_us() == REPEAT_US
    assert questions.sent(REPEAT_US - 1) == []
    assert questions.sent(REPEAT_US) == [1] and questions.asked.next_us() == 3 * REPEAT_US
    questions.shown.add(1)
    questions.asked.entry_changed(1)
    questions.asked.settle(known=1)
    assert request.done and questions.asked.next_us() is None


def test_a_request_that_is_asked_again_keeps_its_pause():
    questions = Questions()
    request = questions.ask(1)
    assert questions.sent(0) == [1]
    assert questions.ask(1) is request
    assert questions.asked.next_us() == REPEAT_US and questions.sent(REPEAT_US) == [1]
    assert questions.sent(REPEAT_US) == [], "it is sent once, though it was asked twice"


def test_tables_that_are_older_than_the_answer_do_not_count():
    questions = Questions()
    request = questions.ask(1, needs_answer=True)
    questions.shown.add(1)
    questions.asked.entry_changed(1)
    assert questions.asked.settle(known=8) == [] and not request.done, "nobody has answered"
    questions.asked.answered(questions.asked.take_due(0), decision=9)
    assert questions.asked.settle(known=8) == []
    assert questions.asked.settle(known=9) == [("ready", 1)] and request.done


def test_a_request_that_is_held_is_sent_once_it_is_let_go():
    questions = Questions()
    questions.ask(1)
    questions.asked.hold(("ready", 1), is_held=True)
    assert questions.asked.next_us() is None and questions.sent(0) == []
    questions.asked.hold(("ready", 1), is_held=False)
    assert questions.sent(0) == [1] and questions.sent(0) == []


def test_a_request_that_was_dropped_is_neither_sent_nor_settled():
    questions = Questions()
    request = questions.ask(1)
    questions.asked.drop(("ready", 1))
    questions.shown.add(1)
    questions.asked.entry_changed(1)
    assert questions.asked.settle(known=1) == [] and questions.sent(0) == [] and not request.done

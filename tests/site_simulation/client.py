"""Owns one operation of a client, which is a thread of a member: where it goes, and when it goes again, says the
product."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from pywan import _core
from pywan.calls.route import Aim, Route, Trouble
from pywan.calls.table import BucketTable, KnownPrimary
from pywan.coordination.tables import BucketKey
from pywan.errors import LowMemoryError, PywanError

from .simulation import MS
from .watch import Shown

if TYPE_CHECKING:
    from .member import Line, Member

CALL_TIMEOUT_US = 3000 * MS
REPLICA_WAIT_US = 50 * MS  # So long a read at the member's own replica waits until what it saw counts.
ROLE_US = 30 * MS  # So long a call waits whose member is about to become primary itself. (A thread looks more often.)

ANSWERED, FAILED, IN_DOUBT = "answered", "failed", "in doubt"
AT_REPLICA = "answered at a replica"  # Of a member that is not the primary.


class Client:
    """`over` gets what became of the operation: ANSWERED or AT_REPLICA with the answer, FAILED (nothing was changed),
    IN_DOUBT."""

    def __init__(
        self,
        member: Member,
        region: str,
        key: str,
        name: str,
        arguments: tuple[Any, ...],
        event_id: tuple[int, int, int],
        over: Callable[[str, Hashable], object],
    ) -> None:
        self._member, self._key, self._name, self._over = member, key, name, over
        core = member.regions[region]
        self._padding = member.world.value_bytes
        self._condition = self._condition_of(name, arguments)
        self._returns_found = name == "put_if_absent" or (name == "replace" and len(arguments) == 1)
        operation = {"get": None, "destroy": _core.DESTROY, "remove": _core.DESTROY}.get(name, _core.UPDATE)
        value = self._padded(arguments[-1]) if operation == _core.UPDATE else None
        self._region = region
        self._table = BucketTable(region, core.bucket_count)  # As long as the member has the region alone.
        here = KnownPrimary(member.me, "127.0.0.1", 1, 1)
        self._table.set_primaries(dict.fromkeys(range(core.bucket_count), here))
        member.sharing._connections()
        assert member.lines is not None
        self._lines = member.lines
        route = core.route or Route(core, self._table, member.lines)
        self._steps = _core.CallSteps(route, operation, key, value, event_id, member.now_us, self._condition)
        self._began_us = member.now_us
        self._until_us = self._began_us + CALL_TIMEOUT_US
        self._aim = self._new_aim(None)
        self._wait_until_us = 0
        self._waits_in = 0  # The member's turn in which it was seen that nothing is known that ends the wait.
        self._line: Line | None = None  # Where the attempt is that is on its way.
        self._opens = False
        self._replica_read = (
            _core.ReplicaRead(core, key) if name == "get" else None
        )  # Until it is clear that it does not answer.
        self._replica_until_us = member.now_us + REPLICA_WAIT_US
        self._replica_state = core.changelog.state(self._steps.bucket) if core.changelog is not None else {}
        member.clients.append(self)

    def _new_aim(self, trouble: Trouble | None) -> Aim:
        self._table = self._member.sharing.table(self._region) or self._table
        so_far_us = self._member.now_us - self._began_us
        return Aim(self._table, self._steps.bucket, trouble, so_far_us / 1e6)

    def _padded(self, value: Any) -> Any:
        """The value as the region has it. In some worlds each one is large."""
        return str(value).ljust(self._padding) if self._padding else value

    def _number(self, value: Any) -> Hashable:
        """The number in a value that the region has."""
        return int(value) if isinstance(value, str) else value

    def _condition_of(self, name: str, arguments: tuple[Any, ...]) -> _core.Condition | None:
        match name, arguments:
            case "put_if_absent", _:
                return _core.Condition("absent")
            case "replace", (_,):
                return _core.Condition("value")
            case ("replace", (old, _)) | ("remove", (old,)):
                return _core.Condition("equal", self._padded(old))
        return None

    def due_us(self) -> int:
        if self._replica_read is not None:
            return self._replica_until_us
        return min(self._until_us, self._wait_until_us) if self._wait_until_us else self._until_us

    def move(self) -> bool:
        """Goes on as far as it can. Returns whether it did anything."""
        try:
            return self._move()
        except PywanError as error:
            if isinstance(error, LowMemoryError):
                self._member.world.statistics["changes refused for memory"] += 1
            self._end(IN_DOUBT if error.in_doubt or self._steps.in_doubt else FAILED, None)
            return True

    def _move(self) -> bool:
        now = self._member.now_us
        if self._replica_read is not None:
            answers = self._replica_read.take() if self._replica_read.begun else False
            if answers:
                self._show(self._replica_read)
                return True
            if answers is None and now < self._replica_until_us:
                return False
            self._replica_read = None
        if now < self._wait_until_us and self._waits_in == self._member.turn and now < self._until_us:
            return False
        self._waits_in = self._member.turn
        if self._line is not None:
            done = self._steps.take()
            if done:
                self._end(ANSWERED, self._answer())
                return True
            if done is False:
                is_here, self._line = self._line.end is None, None
                self._aim = self._new_aim(self._steps.trouble)
                self._member.world.statistics[f"attempts {self._steps.trouble[0]}"] += 1
                self._wait_until_us = 0
                if self._aim.wait_s:
                    self._wait_until_us = now + int(self._aim.wait_s * 1e6)
                elif is_here:
                    self._wait_until_us = now + ROLE_US
        if now >= self._until_us:
            self._end(IN_DOUBT if self._steps.in_doubt else FAILED, None)
            return True
        if self._line is not None or self._opens:
            return False
        return self._go()

    def _show(self, read: _core.ReplicaRead) -> None:
        """Ends with what the member's own replica answers."""
        state = self._replica_state
        value = None if read.data is None else self._number(_core.decode_object(read.form, read.data))
        shown = Shown(value, state["timeline"], read.sequence, state["log_end"])
        self._member.world.watch.read_at_replica(
            self._member, BucketKey(self._region, self._steps.bucket), self._key, shown
        )
        self._end(AT_REPLICA, value)

    def _go(self) -> bool:
        """Makes the next attempt, if it is time."""
        aim, member, now = self._aim, self._member, self._member.now_us
        if self._wait_until_us:
            known = self._table.primary(self._steps.bucket)
            is_newer = aim.wait_s and known.epoch > aim.newer_than and known.member is not None
            if now < self._wait_until_us and not is_newer:
                return False
            self._wait_until_us = 0
            aim.take(known)
        primary = aim.primary
        if primary.member is None:
            self._miss(("nobody", primary.epoch, "no member is known to be its primary", b""))
        elif primary.member == member.me:
            self._send(self._lines.here, 0)
        else:
            self._opens = True
            lines, to = self._lines, primary.member

            def opened(why: str | None) -> None:
                self._opens = False
                if self not in member.clients:
                    return
                if why is not None:
                    self._miss(("broken", primary.epoch, why, b""))
                else:
                    self._send(lines.lines[to], primary.epoch)

            lines.open(to, opened)
        return True

    def _miss(self, trouble: tuple[str, int, str, bytes]) -> None:
        self._aim.miss(trouble)
        self._wait_until_us = self._member.now_us + int(self._aim.wait_s * 1e6)

    def _send(self, line: Line, epoch: int) -> None:
        if self._steps.send(line.line, epoch, max(0, self._until_us - self._member.now_us)):
            self._line = line
        else:
            self._aim = self._new_aim(self._steps.trouble)
            self._wait_until_us = self._member.now_us + max(int(self._aim.wait_s * 1e6), ROLE_US)

    def _answer(self) -> Hashable:
        """The answer as `linearizability.apply` has it."""
        result = self._steps.result
        if self._name == "get":
            _, form, data = result
            return None if data is None else self._number(_core.decode_object(form, data))
        is_made = result in ("created", "updated", "destroyed")
        if self._condition is None:
            return is_made if self._name == "destroy" else None
        return self._number(self._steps.found) if self._returns_found else is_made

    def _end(self, what: str, answer: Hashable) -> None:
        self._member.clients.remove(self)
        del self._steps  # The slot of the call is free.
        self._over(what, answer)

    def end(self) -> None:
        """The process has ended."""
        if self._opens or self._line is not None or self._steps.in_doubt:
            self._end(IN_DOUBT, None)
        else:
            self._end(FAILED, None)

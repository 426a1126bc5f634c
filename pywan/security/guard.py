"""Owns who is let in at the ports of a process: it asks the security manager, and keeps its answers for seconds."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pywan.base.lines import Lines
from pywan.base.names import printable, quoted
from pywan.base.threads import EssentialThread, told_error
from pywan.errors import AuthenticationError, NotAuthorizedError, PywanError
from pywan.security.manager import Credentials, SecurityManager
from pywan.security.permissions import Permission
from pywan.security.tries import Tries

if TYPE_CHECKING:
    from pywan.security.members_secret import Challenge, MembersSecret

log = logging.getLogger("pywan.security")

# So many tries of a process are looked at together: each costs 16 MiB and a processor. Those who have shown right
# credentials before have as many places of their own, so that strangers do not keep them out.
AT_ONCE = 2
TURN_S = 5.0  # The limit for the wait for one of these places.
RIGHT_S = 10.0  # Credentials that were right are not looked at again for so long.
PROVEN_S = 3600.0  # Who has shown right credentials is not slowed for so long by others who have not.
DECISION_S = 5.0  # So long a decision holds.
LOOK_S = 5.0  # So often open connections are looked at.
RIGHT_MAX, PROVEN_MAX, DECISIONS_MAX = 1024, 4096, 8192
USER_CHARACTERS_MAX = 255
NOT_PROVEN = "refused: that does not prove the secret of the members of this site"
# All that a stranger hears. It is the same whether the user is unknown, the password wrong, or the try too early.
REFUSED = (
    "refused: these credentials are not accepted here; check security-username (to another site: gateway-username) and"
    " the first line of the file with the password, or the certificate (the log of the process that refused says why)"
)
NEEDED = (
    "refused: authentication is needed, and no credentials were shown; give security-username and"
    " security-password-file (to another site: gateway-username and gateway-password-file), or a certificate that is"
    " known there"
)

_turns, _proven_turns = threading.BoundedSemaphore(AT_ONCE), threading.BoundedSemaphore(AT_ONCE)


class _Members:
    """Who has proven the secret of the members: each of them, and none in particular."""

    def __str__(self) -> str:
        return "a member or locator of this site"


_MEMBERS = _Members()


def _begin_anew() -> None:
    """A forked child has none of the threads that hold places."""
    global _turns, _proven_turns
    _turns, _proven_turns = threading.BoundedSemaphore(AT_ONCE), threading.BoundedSemaphore(AT_ONCE)


os.register_at_fork(after_in_child=_begin_anew)


class _Open(NamedTuple):
    """A connection that lasts as long as its principal may do this, and as `goes_on` says so; None: nothing more is
    asked."""

    principal: Hashable
    permission: Permission
    in_some_region: bool
    end: Callable[[], object]
    goes_on: Callable[[], bool] | None
    what: str


class Guard:
    """Any thread may use it.

    Args:
        manager: Decides. None: nobody is asked who they are, and all may do all.
        who: The process, for the log.
        clock: Returns seconds that only grow.
        secret: What members and locators of the site prove. Who has proven it may do all. None: they prove nothing.
    """

    def __init__(
        self,
        manager: SecurityManager | None,
        *,
        who: str = "",
        clock: Callable[[], float] = time.monotonic,
        secret: MembersSecret | None = None,
    ) -> None:
        self._manager, self._who, self._clock, self.secret = manager, who, clock, secret
        self._lines = Lines(log)
        self.tries = Tries(clock)
        self._key = os.urandom(32)  # What is remembered of credentials is of use to nobody else.
        self._changed = threading.Condition()  # Guards all below. It is notified when the guard ends.
        self._right: OrderedDict[bytes, tuple[Hashable, float]] = OrderedDict()
        self._proven: OrderedDict[bytes, float] = OrderedDict()
        self._decisions: OrderedDict[tuple[Hashable, Permission, bool], tuple[bool, float]] = OrderedDict()
        self._open: dict[int, _Open] = {}
        self._numbers = 0
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked who they are."""
        return self._manager is None

    @property
    def tells_some_region(self) -> bool:
        """Whether the manager can say that somebody may do something in one region at least."""
        return hasattr(self._manager, "authorize_in_some_region")

    @property
    def knows_its_own(self) -> bool:
        """Whether a member or locator of the site is told from others."""
        return not self.is_open or self.secret is not None

    def status(self) -> dict[str, Any]:
        """Returns whether somebody is asked, and how many tries failed, as plain values."""
        return {
            "asked": not self.is_open,
            "members_secret": self.secret is not None,
            "failed_tries": self.tries.failed_count,
            "slowed_tries": self.tries.slowed_count,
        }

    def stop(self) -> None:
        """Ends the look at open connections. It may be called twice."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(LOOK_S)

    # Who it is

    def authenticate(self, credentials: Credentials, address: str, place: str, limit_s: float = TURN_S) -> Hashable:
        """Returns who shows these credentials.

        Args:
            credentials: What is shown.
            address: Whose tries are counted together.
            place: Where it comes from, for the log.
            limit_s: For how long the opening may still take.

        Raises:
            AuthenticationError: It is nobody, with the one word that the other end may hear. The log says more.
        """
        manager = self._manager
        assert manager is not None, "nobody is asked"
        user = credentials.user or credentials.certificate
        if not user:
            self._lines.warning("%s: refused %s: it does not say who it is", self._who, place)
            raise AuthenticationError(NEEDED)
        key = self._key_of(credentials)
        with self._changed:
            now = self._clock()
            right = self._right.get(key)
            if right is not None and right[1] > now:
                return right[0]
            is_proven = self._proven.get(key, 0.0) > now
        if not is_proven:
            self._check_turn(address, place, user)
        turns = _proven_turns if is_proven else _turns
        if not turns.acquire(timeout=max(0.0, min(limit_s, TURN_S))):
            self._refuse(place, user, f"{AT_ONCE} others were being looked at, and it was not its turn in time")
        try:
            if not is_proven:  # Others from there may have failed while this one waited.
                self._check_turn(address, place, user)
            principal = self._look_at(manager, credentials, address, place, user)
        finally:
            turns.release()
        self.tries.worked(address, user)
        with self._changed:
            now = self._clock()
            _keep(self._right, key, (principal, now + RIGHT_S), RIGHT_MAX)
            _keep(self._proven, key, now + PROVEN_S, PROVEN_MAX)
        return principal

    def _look_at(
        self, manager: SecurityManager, credentials: Credentials, address: str, place: str, user: str
    ) -> Hashable:
        try:
            principal = manager.authenticate(credentials)
            if principal is None:
                raise AuthenticationError("the security manager knows nobody by these credentials")
            hash(principal)
            return principal
        except AuthenticationError as error:
            times = self.tries.failed(address, user)
            self._refuse(place, user, f"{error} ({times} tries in a row)")
        except Exception as error:  # The manager may be of a user's own.
            self._refuse(place, user, f"the security manager failed: {told_error(error)}")

    def _check_turn(self, address: str, place: str, user: str) -> None:
        """Refuses who has failed so often that the next try does not count yet."""
        wait_s = self.tries.wait_s(address, user)
        if wait_s > 0:
            self._say_refused(place, user, f"too many tries failed; the next one counts in {wait_s:.1f} s")
            raise AuthenticationError(REFUSED)

    def _refuse(self, place: str, user: str, why: str) -> NoReturn:
        self._say_refused(place, user, why)
        raise AuthenticationError(REFUSED) from None

    def _say_refused(self, place: str, user: str, why: str) -> None:
        self._lines.warning("%s: refused %s as %s: %s", self._who, place, quoted(user), printable(why))

    def _key_of(self, credentials: Credentials) -> bytes:
        import hmac  # A process that asks nobody does not load it.

        parts = (credentials.user, credentials.password, credentials.certificate)
        text = b"".join(len(each).to_bytes(4, "big") + each.encode(errors="surrogatepass") for each in parts)
        return hmac.digest(self._key, text, "sha256")

    # What they may do

    def may(self, principal: Hashable, permission: Permission) -> bool:
        """Returns whether `principal` may do this. Nothing is logged if not."""
        return principal is _MEMBERS or self._may(principal, permission)

    def check(self, principal: Hashable, permission: Permission, what: str, *, in_some_region: bool = False) -> None:
        """Raises NotAuthorizedError if `principal` may not do `what`. It names them: it is no stranger who asks.
        `in_some_region`: it is enough to have the permission for one region."""
        if principal is not _MEMBERS and not self._may(principal, permission, in_some_region):
            self._look_anew(principal)
            self._lines.warning(
                "%s: refused %s: %s may not do it: %s is needed",
                self._who,
                printable(what),
                printable(str(principal)),
                printable(str(permission)),
            )
            raise NotAuthorizedError(
                f"refused: {printable(str(principal))} lacks the permission {permission}, which {printable(what)}"
                f" needs{' for one region at least' if in_some_region else ''}; give that user a role with it, or be"
                " another user"
            )

    def _may(self, principal: Hashable, permission: Permission, in_some_region: bool = False) -> bool:
        manager = self._manager
        assert manager is not None, "nobody is asked"
        key = principal, permission, in_some_region
        with self._changed:
            known = self._decisions.get(key)
            if known is not None and known[1] > self._clock():
                return known[0]
        try:
            if in_some_region:
                ask = getattr(manager, "authorize_in_some_region", None)
                may = ask is None or ask(principal, permission) is True
            else:
                may = manager.authorize(principal, permission) is True
        except Exception as error:
            self._lines.error("%s: the security manager failed: %s", self._who, told_error(error))
            return False
        with self._changed:
            _keep(self._decisions, key, (may, self._clock() + DECISION_S), DECISIONS_MAX)
        return may

    def _look_anew(self, principal: Hashable) -> None:
        """Has the credentials of `principal` looked at once more: it may have been removed, and may have come back."""
        with self._changed:
            for key in [key for key, (each, _) in self._right.items() if each == principal]:
                del self._right[key]

    def say_not_proven(self, place: str, why: str) -> None:
        """Logs that somebody has not proven the secret of the members."""
        self._lines.warning("%s: refused %s as a member of this site: %s", self._who, place, printable(why))

    # Open connections

    @contextlib.contextmanager
    def watching(
        self,
        principal: Hashable | None,
        permission: Permission,
        end: Callable[[], object],
        what: str,
        *,
        in_some_region: bool = False,
        goes_on: Callable[[], bool] | None = None,
    ) -> Iterator[None]:
        """Looks again and again, as long as the block runs, whether `principal` may do this, and calls `end` if not.
        None: nobody is asked. `in_some_region`: as for `check`. `goes_on`: asked each time, too."""
        if principal is None or self.is_open:
            yield
            return
        with self._changed:
            self._numbers += 1
            number = self._numbers
            self._open[number] = _Open(principal, permission, in_some_region, end, goes_on, what)
            if self._thread is None and not self._stopped:
                self._thread = EssentialThread(self._look, name=f"{self._who}-guard")
                self._thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._open.pop(number, None)

    def _look(self) -> None:
        while True:
            with self._changed:
                if self._stopped or self._changed.wait_for(lambda: self._stopped, LOOK_S):
                    return
                connections = list(self._open.values())
            for each in connections:
                if not self._may(each.principal, each.permission, each.in_some_region) or (
                    each.goes_on is not None and not each.goes_on()
                ):
                    self._look_anew(each.principal)
                    self._lines.warning(
                        "%s: ended %s: %s may not do it any more",
                        self._who,
                        printable(each.what),
                        printable(str(each.principal)),
                    )
                    with contextlib.suppress(OSError, PywanError):
                        each.end()


class Caller:
    """Who speaks on one control connection. Its own thread uses it.

    Args:
        guard: Of the port.
        address: Whose tries are counted together.
        place: Where the connection comes from.
        certificate: The name in the certificate that it has shown. "": it showed none.
    """

    def __init__(self, guard: Guard, address: str, place: str, certificate: str = "") -> None:
        self._guard, self._address, self._place = guard, address, place
        self._certificate = certificate
        self._principal: Hashable | None = None
        self._challenge: Challenge | None = None
        self._is_member = False

    @property
    def is_known(self) -> bool:
        """Whether it has shown who it is, or nobody is asked."""
        return self._guard.is_open or self._principal is not None

    @property
    def has_certificate(self) -> bool:
        """Whether it has shown a certificate, which TLS has checked."""
        return bool(self._certificate)

    def authenticate(self, user: Any, password: Any, limit_s: float = TURN_S) -> None:
        """Takes a user and a password. AuthenticationError: they are nobody's."""
        if self._guard.is_open:
            return
        self._principal = None
        self._principal = self._guard.authenticate(
            credentials_of(user, password, self._certificate), self._address, self._place, limit_s
        )

    def show_certificate(self) -> None:
        """Takes the certificate of the connection. AuthenticationError: it has none, or it is nobody's."""
        if not self._certificate:
            raise AuthenticationError(NEEDED)
        self._principal = self._guard.authenticate(
            Credentials(certificate=self._certificate), self._address, self._place
        )

    @property
    def is_proving(self) -> bool:
        """Whether it has begun to prove the secret of the members, and has not proven it."""
        return self._challenge is not None

    def prove(self, request: dict[str, Any], bound_to: bytes) -> dict[str, Any]:
        """Takes one of the two messages that prove the secret of the members. Returns the reply.

        AuthenticationError: it is not proven.
        """
        secret, challenge = self._guard.secret, self._challenge
        self._principal, self._is_member, self._challenge = None, False, None
        if secret is None:
            raise AuthenticationError("refused: this process has no members-secret-file")
        if challenge is None:
            try:
                reply, self._challenge = secret.answer(request, bound_to)
            except AuthenticationError as error:
                self._guard.say_not_proven(self._place, str(error))
                raise AuthenticationError(NOT_PROVEN) from None
            return reply
        if not secret.is_proven(challenge, request):
            self._guard.say_not_proven(self._place, "a wrong proof")
            raise AuthenticationError(NOT_PROVEN)
        self._principal, self._is_member = _MEMBERS, True
        return {}

    def check_member(self, what: str) -> None:
        """Raises NotAuthorizedError if there is a secret of the members, and it has not proven that."""
        if self._guard.secret is not None and not self._is_member:
            self._guard.say_not_proven(self._place, f"{what} without a proof")
            raise NotAuthorizedError(
                f"refused: {printable(what)} is for members and locators of this site alone, which prove their"
                " secret: give members-secret-file"
            )

    def check(self, permission: Permission, what: str) -> None:
        """Raises AuthenticationError if it has not shown who it is, and NotAuthorizedError if it may not do this."""
        if self._guard.is_open:
            return
        if self._principal is None:
            raise AuthenticationError(NEEDED)
        self._guard.check(self._principal, permission, f"{what} of {self._place}")


def credentials_of(user: Any, password: Any, certificate: str) -> Credentials:
    """Makes credentials of what came. AuthenticationError if none can be that."""
    if user is None and password is None:
        return Credentials(certificate=certificate)
    if not isinstance(user, str) or not isinstance(password, str) or not 0 < len(user) <= USER_CHARACTERS_MAX:
        raise AuthenticationError(REFUSED)
    return Credentials(user, password, certificate)


def admit(
    guard: Guard,
    shown: Credentials,
    address: str,
    place: str,
    permission: Permission,
    what: str,
    limit_s: float,
    *,
    in_some_region: bool = False,
) -> Hashable | None:
    """Lets an opening of another protocol in. Returns who it is; None: nobody is asked. `in_some_region`: as for
    `Guard.check`.

    AuthenticationError, NotAuthorizedError: it is refused.
    """
    if guard.is_open:
        return None
    principal = guard.authenticate(shown, address, place, limit_s)
    # Who may do it in all regions may do it in one.
    if not guard.may(principal, permission):
        guard.check(principal, permission, f"{what} of {place}", in_some_region=in_some_region)
    return principal


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > most:
        kept.popitem(last=False)


OPEN = Guard(None)  # Asks nobody.

__all__ = ["NEEDED", "OPEN", "REFUSED", "Caller", "Guard", "admit", "credentials_of"]

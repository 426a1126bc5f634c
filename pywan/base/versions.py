"""Owns the version of what the members and locators of one site say to each other, and which versions go together.

Replication links, calls and coordination have one version. Everybody says its own at each opening, and both ends then
speak the lower one. So a site is upgraded a process at a time, while it works: two versions that differ by one go
together.

What a later version may change: a map gets more keys, and a record (pywan.coordination.plain) more fields at its end.
Who does not know them leaves them out. A field that came later says so (`Since`), and has a default for those who do
not tell it. All else that differs, the ends do by the version that they agreed on.
"""

from __future__ import annotations

from pywan.base.names import quoted
from pywan.errors import IncompatibleSystemError, ProtocolError

VERSION = 1
MOST = 2**16 - 1


def agreed(theirs: object, who: str, me: str) -> int:
    """Returns the version that both ends speak.

    Args:
        theirs: What the other end says that it speaks.
        who: The other end, in words.
        me: This one.

    Raises:
        IncompatibleSystemError: The versions differ by more than one.
        ProtocolError: It says no version.
    """
    if type(theirs) is not int or not 0 < theirs <= MOST:
        raise ProtocolError(f"{who} says that it speaks version {quoted(theirs)} of the protocol of a site")
    if abs(theirs - VERSION) > 1:
        raise IncompatibleSystemError(
            f"{who} speaks version {theirs} of the protocol of a site, and {me} version {VERSION}: versions that differ"
            " by one go together; upgrade the site through the versions of pywan between them"
        )
    return min(theirs, VERSION)

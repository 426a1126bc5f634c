"""The claims of locators about the coordinator of their site, and the words for two contradicting claims."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pywan.base.names import check_name
from pywan.errors import ProtocolError

JOURNAL_FILE = "coordination.db"
CLAIM_FILE = "coordinator.json"
MAX_CHARACTERS = 1000  # The limit for an identity.


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of one locator. A site has one coordinator and one identity, so two differing claims are of two sites.

    An identity may change under one coordinator: the coordinator has lost its file, and its members restore the earlier
    identity. Followers of the coordinator learn of the change later. So two claims with the same coordinator differ
    only if both locators decide themselves: then both locators have the same name.
    """

    locator: str
    address: str  # The locator's.
    coordinator: str  # Empty: the locator does not know a coordinator yet.
    site_identity: str
    decided: bool  # The coordinator has decided something, as far as the locator knows. Then it does not give way.

    @property
    def is_of_coordinator(self) -> bool:
        """Whether this locator coordinates."""
        return bool(self.coordinator) and self.coordinator == self.locator

    def is_of_another_site_than(self, other: Claim) -> bool:
        if not self.site_identity or not other.site_identity or self.site_identity == other.site_identity:
            return False
        return self.coordinator != other.coordinator or (self.is_of_coordinator and other.is_of_coordinator)

    def __str__(self) -> str:
        follows = "" if self.is_of_coordinator else f" names {self.coordinator} as its coordinator, and"
        return f"locator {self.locator} at {self.address}{follows} belongs to the site {self.site_identity}"


def claim_of(value: Any, address: str) -> Claim | None:
    """Returns the claim of the locator at `address`. None: the locator names no coordinator.

    ProtocolError if the claim cannot be used.
    """
    if not isinstance(value, dict) or not value.get("coordinator"):
        return None
    locator = check_name(value.get("locator"), "a locator", ProtocolError)
    coordinator = check_name(value["coordinator"], "a coordinator", ProtocolError)
    identity = value.get("site_identity")
    if not isinstance(identity, str) or len(identity) > MAX_CHARACTERS:
        raise ProtocolError(f"what locator {locator} says of the coordinator {coordinator} cannot be used")
    return Claim(locator, address, coordinator, identity, value.get("decided") is True)


def pairs_of_two_sites(claims: Collection[Claim]) -> Iterator[tuple[Claim, Claim]]:
    """Yields the pairs of claims of two sites. Pairs that do not change by themselves, since both have decided, come
    first."""
    listed = list(claims)
    pairs = [
        (one, two) for at, one in enumerate(listed) for two in listed[at + 1 :] if one.is_of_another_site_than(two)
    ]
    return iter(sorted(pairs, key=lambda pair: not (pair[0].decided and pair[1].decided)))


def in_words(one: Claim, two: Claim) -> str:
    """The difference, and the remedy."""
    return (
        f"{one}, and {two}: take one of them out of `locators`, or give each locator the other one in its `locators`;"
        f" where both sites have decided something, first stop the locator that is to give way, remove {CLAIM_FILE} and"
        f" {JOURNAL_FILE} from its folder, and start it again"
    )

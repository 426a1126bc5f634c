"""Owns a process of a site that speaks another version of the site's protocol than this pywan, as a later or an earlier
pywan would: its records have a field more at their ends, and its maps a key more. It is asked as any `SiteProcess`."""

from __future__ import annotations

from typing import Any

from pywan.base import versions
from pywan.coordination import encoding
from pywan.protocol import between_members
from pywan.testing.site_processes import SiteProcess, serve_site

LATER = "of a later version"
RECORDS = ("plain_attributes", "plain_bucket", "plain_profile", "plain_refused", "plain_still_needed")


class Member(SiteProcess):
    def speak(self, version: int) -> None:
        """From now on the process speaks that version. A later one says more than this one knows."""
        is_later, versions.VERSION = version > versions.VERSION, version
        if is_later:
            for name in RECORDS:
                setattr(encoding, name, _with_more(getattr(encoding, name)))
            encode = between_members._encode
            between_members._encode = lambda protocol, body: encode(protocol, {**body, "later": LATER})


def _with_more(plain: Any) -> Any:
    return lambda value: [*plain(value), LATER]


if __name__ == "__main__":
    serve_site(Member())

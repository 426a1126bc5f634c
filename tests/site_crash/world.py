"""Owns the site of a test or a campaign: processes of `member.py`."""

from __future__ import annotations

from pathlib import Path

from pywan.testing.site_processes import SiteOfProcesses


class Site(SiteOfProcesses):
    program = Path(__file__).with_name("member.py")

"""Owns what tests look at of a running site."""

from __future__ import annotations

from pywan.transport.control import call_once


def coordination(site) -> dict:
    return call_once(site.address, "coordination-show")["coordination"]

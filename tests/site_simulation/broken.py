"""Owns the error by which a world says that a promise was not kept."""

from __future__ import annotations


class Broken(Exception):
    """A promise was not kept."""

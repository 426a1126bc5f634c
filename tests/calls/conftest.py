"""Owns the primary whose calls the tests of this room bring."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.served import Served


@pytest.fixture
def served() -> Iterator[Served]:
    yield Served()

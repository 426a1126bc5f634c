"""Owns the form of a batch as Arrow columns. The core lays them out, so there is no Python object for an event."""

from __future__ import annotations

from typing import Any

from pywan import _core
from pywan.errors import ConfigurationError


def to_arrow(batch: _core.EventBatch) -> Any:
    """Returns a batch as `pyarrow.RecordBatch`."""
    raise ConfigurationError(f"{batch!r}: columns are not there yet")

"""Regions as Python sees them, and what changes their entries: callers, callbacks, the repair of the clock."""

"""A sender's queue, in memory and in its log."""

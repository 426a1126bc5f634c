"""Pieces of the protocol of a site, each with a patch that takes it out, and a command that says which check of the
simulated site sees the loss (docs/testing.md)."""
